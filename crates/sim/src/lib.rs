//! Simulated networks under virtual time, fault plans, checkers and the packetdrill-language runner.
