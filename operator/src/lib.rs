//! The operator: controllers (leader only) and gateway (every replica).
//!
//! `ARCHITECTURE.md` tells the life of a run; each module here is one part of it.
