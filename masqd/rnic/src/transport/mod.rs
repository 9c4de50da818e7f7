//! The RC transport, without IO: packets, work and time in; packets, completions and deadlines out.
