//! The program masqctl against a server that records what it is asked: requests, output, exit statuses.

mod commands;
mod objects;
mod server;
mod tls;
