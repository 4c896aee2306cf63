mod access;
mod changes;
mod learning;
mod peers;
mod restart;
mod saved;
mod trace;
mod world;
