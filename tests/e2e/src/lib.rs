//! e2e-tests
