//! Continuable children: their inbox, and the runs that activate them.

pub mod inbox;
pub mod placing;
