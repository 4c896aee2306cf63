//! What Lasthop's processes say to one another: messages with descriptors, upcalls and answers.
