//! Linerate: a TCP/IP stack in user space for very fast flows.
