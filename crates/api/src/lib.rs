//! Versioned request and response types of the HTTP API.
