//! Our tracking beside the kernel's: recorded answers everywhere, random frames where the kernel
//! answers.

mod answer;
mod compare;
mod differences;
mod frames;
mod kernel;
mod live;
mod ours;
mod properties;
mod recorded;
mod walk;
