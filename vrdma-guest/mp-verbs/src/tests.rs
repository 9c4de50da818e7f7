//! Two connections over queue pairs in memory, and structures beside the headers.

mod layout;
mod mock;
