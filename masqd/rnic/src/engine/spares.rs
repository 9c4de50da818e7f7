//! Buffers of requests that are done and of packets that were kept, which serve those to come: of all queue pairs, so that idle ones keep none and busy ones
//! allocate none. (Of memory that is freed and taken again the C library may give the pages back to the kernel in between, which costs more than all else.)

use crate::assigned::MOST_AHEAD;
use crate::transport::{RecvWork, Room, SendWork};

/// What an engine has to lend.
#[derive(Debug, Default)]
pub struct Spares {
    works: Vec<SendWork>,
    recvs: Vec<RecvWork>,
    rooms: Vec<Room>,
    buffers: Vec<Vec<u8>>,
}

impl Spares {
    /// How many requests are kept: as many as one queue pair has on its way at most. Each is at most about a KiB, by the longest
    /// inline data and most scatter/gather entries that queue pairs can have.
    const MOST_WORKS: usize = 1024;
    /// How many receives are kept: as many as one group can have assigned.
    const MOST_RECVS: usize = MOST_AHEAD as usize;
    /// For how many queue pairs room for requests is kept.
    const MOST_ROOMS: usize = 64;
    /// For how many requests that is at most; what is larger has served as many, and may well be made again.
    const MOST_ROOM: usize = 64;

    /// How many buffers of packets are kept: as many as one peer can have on its way, at most a packet of path MTU 4096 each.
    const MOST_BUFFERS: usize = 1024;

    /// A request to fill, without data.
    pub fn lend(&mut self) -> SendWork {
        self.works.pop().unwrap_or_default()
    }

    /// Keeps the buffers of a request, if not too many are kept. What it held is its guest's, and goes no further.
    pub fn give_back(&mut self, mut work: SendWork) {
        if self.works.len() < Self::MOST_WORKS {
            work.inline_data.clear();
            work.sges.clear();
            self.works.push(work);
        }
    }

    /// A receive to fill.
    pub fn lend_recv(&mut self) -> RecvWork {
        self.recvs.pop().unwrap_or_default()
    }

    /// Keeps the buffers of a receive, if not too many are kept.
    pub fn give_back_recv(&mut self, mut work: RecvWork) {
        if self.recvs.len() < Self::MOST_RECVS {
            work.sges.clear();
            work.placed.clear();
            self.recvs.push(work);
        }
    }

    /// Room for requests.
    pub fn lend_room(&mut self) -> Room {
        self.rooms.pop().unwrap_or_default()
    }

    /// Keeps room for requests, if it is not too much.
    pub fn give_back_room(&mut self, room: Room) {
        if self.rooms.len() < Self::MOST_ROOMS && room.capacity() <= Self::MOST_ROOM {
            self.rooms.push(room);
        }
    }

    /// A buffer to fill, empty.
    pub fn lend_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Keeps a buffer, if not too many are kept. What it held is its guest's, and goes no further.
    pub fn give_back_buffer(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < Self::MOST_BUFFERS {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Sge;

    #[test]
    fn buffers_are_used_again_without_what_was_in_them() {
        let mut spares = Spares::default();
        let work = SendWork { inline_data: vec![7; 200], ..spares.lend() };
        spares.give_back(work);
        let again = spares.lend();
        assert_eq!((again.inline_data.len(), again.sges.len()), (0, 0));
        assert!(again.inline_data.capacity() >= 200);
        assert_eq!(spares.lend().inline_data.capacity(), 0, "there was one");
        let mut recv = RecvWork {
            sges: vec![Sge { addr: 0, length: 1, lkey: masq_types::Lkey(1) }; 16],
            ..spares.lend_recv()
        };
        assert!(recv.placed.claim(0..10));
        spares.give_back_recv(recv);
        let again = spares.lend_recv();
        assert!(again.sges.is_empty() && again.sges.capacity() >= 16 && again.placed.is_empty());
        spares.give_back_buffer(vec![7; 4096]);
        let again = spares.lend_buffer();
        assert!(again.is_empty() && again.capacity() >= 4096);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut spares = Spares::default();
        (0..2 * Spares::MOST_WORKS).for_each(|_| spares.give_back(SendWork::default()));
        (0..2 * Spares::MOST_ROOMS).for_each(|_| spares.give_back_room(Room::default()));
        (0..2 * Spares::MOST_BUFFERS).for_each(|_| spares.give_back_buffer(Vec::new()));
        assert_eq!((spares.works.len(), spares.rooms.len()), (Spares::MOST_WORKS, Spares::MOST_ROOMS));
        assert_eq!(spares.buffers.len(), Spares::MOST_BUFFERS);
        (0..2 * Spares::MOST_RECVS).for_each(|_| spares.give_back_recv(RecvWork::default()));
        assert_eq!(spares.recvs.len(), Spares::MOST_RECVS);
    }
}
