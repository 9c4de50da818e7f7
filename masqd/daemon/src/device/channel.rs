//! The channel by which a back end talks to its front end unasked.
//!
//! The `vhost` crate keeps the channel's descriptor to itself and has no message for a changed config
//! space, so masqd looks at the descriptor as it arrives (the kernel hands out a duplicate on a peek) and writes
//! that one message itself.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send};
use vhost::vhost_user::message::{BackendReq, FrontendReq, VhostUserHeaderFlag};

const HEADER_BYTES: usize = 12;
const VERSION: u32 = 1;

/// A channel to the front end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// The channel that the next message on `connection` hands over, if it is such a message. The
    /// message stays where it is.
    pub fn peek(connection: impl AsFd) -> Option<Channel> {
        let mut header = [0; HEADER_BYTES];
        // Without room for descriptors first, so that those of other messages are not duplicated.
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let (n, _) = recv(&connection, &mut header, flags).ok()?;
        let code = u32::from_ne_bytes(header[..4].try_into().ok()?);
        if n != HEADER_BYTES || code != u32::from(FrontendReq::SET_BACKEND_REQ_FD) {
            return None;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&connection, &mut [IoSliceMut::new(&mut header)], &mut control, flags).ok()?;
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next().map(Channel),
            _ => None,
        })
    }

    /// Tells the front end that the config space has changed. Does not wait for it.
    pub fn config_changed(&self) -> io::Result<()> {
        let mut message = [0; HEADER_BYTES];
        message[..4].copy_from_slice(&u32::from(BackendReq::CONFIG_CHANGE_MSG).to_ne_bytes());
        message[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        send(&self.0, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

// The reply flag must not be set in what this module writes: nobody reads an answer.
const _: () = assert!(VERSION & VhostUserHeaderFlag::NEED_REPLY.bits() == 0);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use vhost::VhostBackend;
    use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
    use vhost::vhost_user::{Frontend, VhostUserFrontend};

    use super::*;

    #[test]
    fn the_channel_is_found_and_the_message_stays() {
        let (front, back) = UnixStream::pair().unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(Channel::peek(&back).is_none());
        let frontend = thread::spawn(move || {
            let f = Frontend::from_stream(front, 2);
            // Only this much of the negotiation, so that the crate allows the message.
            let _ = f.set_owner();
            let _ = f.get_features();
            f
        });
        let mut header = [0; HEADER_BYTES];
        (&back).read_exact(&mut header).unwrap();
        (&back).read_exact(&mut header).unwrap();
        reply(&back, FrontendReq::GET_FEATURES, VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits());
        let mut f = frontend.join().unwrap();
        let asker = thread::spawn(move || {
            f.set_features(VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()).unwrap();
            f.get_protocol_features().unwrap();
            f.set_protocol_features(VhostUserProtocolFeatures::BACKEND_REQ).unwrap();
            f.set_backend_request_fd(&theirs).unwrap();
            f
        });
        let mut body = [0; 8];
        (&back).read_exact(&mut header).unwrap();
        (&back).read_exact(&mut body).unwrap();
        (&back).read_exact(&mut header).unwrap();
        assert!(Channel::peek(&back).is_none());
        reply(&back, FrontendReq::GET_PROTOCOL_FEATURES, VhostUserProtocolFeatures::BACKEND_REQ.bits());
        (&back).read_exact(&mut header).unwrap();
        (&back).read_exact(&mut body).unwrap();
        let _frontend = asker.join().unwrap();

        let channel = Channel::peek(&back).expect("the next message hands a channel over");
        channel.config_changed().unwrap();
        ours.read_exact(&mut header).unwrap();
        assert_eq!(header, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        (&back).read_exact(&mut header).unwrap();
        assert_eq!(header[..4], 21u32.to_ne_bytes());
    }

    fn reply(back: &UnixStream, code: FrontendReq, value: u64) {
        use std::io::Write;
        let mut message = Vec::new();
        message.extend(u32::from(code).to_ne_bytes());
        message.extend((VERSION | VhostUserHeaderFlag::REPLY.bits()).to_ne_bytes());
        message.extend(8u32.to_ne_bytes());
        message.extend(value.to_ne_bytes());
        let mut back = back;
        back.write_all(&message).unwrap();
    }
}
