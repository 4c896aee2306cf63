//! Control: wanted state, learning, upcalls, and the API server.
