//! What `wire` says about random frames against what etherparse and smoltcp say.

mod checksums;
mod frames;
mod parse;
mod segments;
