//! Views and builders for frame headers, the flow key, checksums and segmentation. No I/O, no unsafe.
