//! Model checks of the protocols between guest and RNIC.
//!
//! The guest's half is the crate's own code over [`memory::ModelMemory`]; the RNIC's half is written here as the
//! modules `ring` and `doorbell` of the ABI describe it. loom runs every interleaving and every value that the memory
//! model allows a load to see. Each protocol is also run with one of its orderings removed, and must then fail:
//! this shows that the model can see what the ordering prevents.

mod completion;
mod doorbell;
mod memory;
mod shared;
mod work;

/// Runs a model of two threads over all executions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    loom::model::Builder::new().check(model);
}

/// Runs a model of three threads over all executions with at most three preemptions.
fn check_bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
