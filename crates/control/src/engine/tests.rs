mod access;
mod captures;
mod changes;
mod learning;
mod peers;
mod restart;
mod saved;
mod world;
