//! The chart's admission policies, with tenants who have only the rights a test gives them.

mod kept;
mod marks;
mod rights;
mod scene;
