//! Why datagrams were lost.

macro_rules! losses {
    ($($(#[$doc:meta])* $loss:ident = $name:literal,)*) => {
        /// Why a datagram was lost. Nobody is told: it is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Loss {
            $($(#[$doc])* $loss,)*
        }

        impl Loss {
            const ALL: &[Loss] = &[$(Loss::$loss,)*];
            const NAMES: [&'static str; Self::ALL.len()] = [$($name,)*];
        }
    };
}

losses! {
    /// Its destination is nobody in its network, or no answer came in time.
    TxUnknownPeer = "ud_tx_unknown_peer",
    /// The rules do not allow it to be sent.
    TxDenied = "ud_tx_denied",
    /// The destination's number is none of the peer's queue pairs.
    TxForeignQpn = "ud_tx_foreign_qpn",
    /// Peers do not know the address that it comes from yet, or the peer's record has too many.
    TxUnpublishedGid = "ud_tx_unpublished_gid",
    /// The peer has no underlay address of a family that its sender has too.
    TxUnreachable = "ud_tx_unreachable",
    /// There is no queue pair, or it is not ready to receive.
    RxNoQp = "ud_rx_no_qp",
    /// It is no datagram, or is too long for any, or no management datagram where it should be one.
    RxMalformed = "ud_rx_malformed",
    /// It comes from nobody in the receiver's network, or no answer came in time, or too many wait for one.
    RxUnknownPeer = "ud_rx_unknown_peer",
    /// The rules do not allow it to be received.
    RxDenied = "ud_rx_denied",
    /// Its ends have no addresses of the same family, or one of them does not know yet that the other's have changed.
    RxNoGid = "ud_rx_no_gid",
    /// Its Q_Key is not the receiver's.
    RxQkeyViolation = "ud_rx_qkey_violations",
    /// No receive was posted.
    RxNoReceive = "ud_rx_no_receive",
    /// The engine that has the receiver takes no more for the moment.
    RxEngineFull = "ud_rx_engine_full",
    /// It does not fit the receive that it came to.
    RxTooLong = "ud_rx_too_long",
}

/// How many datagrams were lost, by the reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses([u64; Loss::ALL.len()]);

impl Losses {
    /// One was lost.
    pub fn count(&mut self, loss: Loss) {
        if let Some(n) = self.0.get_mut(loss as usize) {
            *n += 1;
        }
    }

    /// All counters with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Loss::NAMES.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_has_its_own_counter() {
        let mut losses = Losses::default();
        for (i, loss) in Loss::ALL.iter().enumerate() {
            (0..=i).for_each(|_| losses.count(*loss));
        }
        let counts: Vec<_> = losses.named().map(|(_, n)| n as usize).collect();
        assert_eq!(counts, (1..=Loss::ALL.len()).collect::<Vec<_>>());
        assert!(losses.named().any(|c| c == ("ud_tx_denied", 2)));
    }
}
