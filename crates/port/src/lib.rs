//! The Port trait, batches of frames, drop reasons, counters and decorators.
