mod access;
mod changes;
mod guards;
mod learning;
mod peers;
mod restart;
mod saved;
mod world;
