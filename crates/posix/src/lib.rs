//! Linux system-call semantics over an inline shard: descriptors, blocking calls, socket options, errno.
