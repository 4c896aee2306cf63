//! Parsing and checksums of random frames, compared with etherparse and smoltcp.

mod checksums;
mod frames;
mod parse;
mod segments;
