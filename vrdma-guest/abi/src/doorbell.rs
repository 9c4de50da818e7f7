//! How a guest tells the RNIC that it posted work.
//!
//! Each context has a [`DoorbellPage`] for each doorbell slot. A QP belongs to one slot and has an
//! index in its context's page of that slot. Whether the engine behind a slot sleeps stands in
//! [`StatusLine::need_kick`] of the device's status page, which only the RNIC writes (save for [`STATUS_LIVE_LINE`]).
//!
//! Posting, guest side:
//!
//! 1. write the WQEs; store `WorkHeader::producer` with release;
//! 2. store 1 to `dirty[index]` with release;
//! 3. store 1 to `summary[index / 64]` with release;
//! 4. full fence;
//! 5. load `need_kick` of the slot; if it is not 0, store the slot's queue number to its doorbell register.
//!
//! RNIC side, while it polls: for each summary byte that is not 0, exchange it with 0, then
//! exchange with 0 each dirty byte of the group that is not 0, then load the producer index with
//! acquire. Before it sleeps: store 1 to `need_kick`, full fence, scan once more; sleep
//! only if nothing was found. The two fences make sure that the guest sees `need_kick` or the RNIC
//! sees the dirty byte. A dirty byte is set before its summary byte and cleared after it, so that no
//! dirty byte stays unseen. Only a send queue needs a doorbell: receives are read when they are needed.
//! In a QP in error the RNIC looks for receives to flush from time to time; a guest that marks the QP after posting one has it
//! flushed at once.

abi_constants! {
    /// QPs in one group of dirty bytes, which share a summary byte.
    pub const QPS_PER_GROUP: u32 = 64;
    /// Groups in a doorbell page.
    pub const DB_GROUPS: u32 = 63;
    /// Most QPs that one context can have in one slot.
    pub const QPS_PER_SLOT: u32 = 4032;
    /// Bytes between the StatusLines of two slots.
    pub const STATUS_LINE_BYTES: u32 = 64;
    /// The last line of the status page belongs to no slot. The guest's kernel stores 1 to its first word before user space can map
    /// the page, and 0 when the RNIC's objects are gone (a new epoch, or the device is removed), so that user space stops
    /// posting. A new epoch gets a new page. A mapping that the kernel has taken away reads as zero, which says the same.
    pub const STATUS_LIVE_LINE: u32 = 63;
}

abi_structs! {
    /// A page of a context's doorbell area.
    pub struct DoorbellPage {
        /// Byte g is not 0 when a dirty byte of group g is set. The last byte belongs to no group.
        pub summary: [u8; 64],
        /// Byte i is not 0 when the QP with index i has new work.
        pub dirty: [u8; 4032],
    }

    /// One slot's line in the device's status page; line s stands at s * STATUS_LINE_BYTES.
    pub struct StatusLine {
        /// Not 0 when the slot's engine sleeps and wants its doorbell to be rung.
        pub need_kick: u32,
        /// Zero.
        pub reserved: [u32; 15],
    }
}
