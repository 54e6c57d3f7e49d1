//! A private PostgreSQL for one machine: find binaries, initialise, start, attach, stop.
