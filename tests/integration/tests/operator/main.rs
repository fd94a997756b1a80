//! The operator against a real API server: in this process, with the chart's rights and nothing more, each test in a
//! namespace of its own. There is no kubelet; a test node binds the pods, starts the real worker for them as a process of
//! this machine, and reports what became of it.

mod audit;
mod lagging;
mod link;
mod node;
mod programs;
mod replica;
mod rights;
mod watching;
mod world;

mod activations;
mod budget;
mod cancelling;
mod certificates;
mod children;
mod deadlines;
mod kills;
mod lineage;
mod pods;
mod probing;
mod providers;
mod refusals;
mod restarts;
mod results;
mod revisions;
mod scale;
mod sessions;
mod starting;
mod steering;
mod tree;
mod undecodable;
mod workspaces;
