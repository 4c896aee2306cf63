mod changes;
mod flows;
mod learning;
mod peers;
mod restart;
mod saved;
mod world;
