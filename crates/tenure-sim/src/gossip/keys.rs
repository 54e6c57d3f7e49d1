//! The keys of simulated nodes.

use tenure_gossip::identity::{Ed25519Keys, Keys, PeerId, Signature};

/// The keys of node `i`: real ones, or cheap stand-ins that let a crowd of thousands end in minutes.
pub(super) fn keys_of(i: usize, real: bool) -> Box<dyn Keys> {
    // Spread out, as keys are.
    let secret = *blake3::hash(&(i as u64).to_le_bytes()).as_bytes();
    if real {
        Box::new(Ed25519Keys::from_secret(&secret))
    } else {
        Box::new(StandInKeys(PeerId(secret)))
    }
}

/// Cheap stand-ins: they notice a wrong signer or a changed message, and protect against no attacker.
#[derive(Debug, Clone, Copy)]
struct StandInKeys(PeerId);

impl StandInKeys {
    fn tag(signer: &PeerId, message: &[u8]) -> u64 {
        let mut h = signer.rank();
        for chunk in message.chunks(8) {
            let mut w = [0; 8];
            w[..chunk.len()].copy_from_slice(chunk);
            h = (h ^ u64::from_le_bytes(w)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            h ^= h >> 32;
        }
        h
    }
}

impl Keys for StandInKeys {
    fn id(&self) -> PeerId {
        self.0
    }

    fn sign(&self, message: &[u8]) -> Signature {
        let mut signature = Signature::NONE;
        signature.0[..8].copy_from_slice(&Self::tag(&self.0, message).to_le_bytes());
        signature
    }

    fn verify(&self, signer: &PeerId, message: &[u8], signature: &Signature) -> bool {
        signature.0[..8] == Self::tag(signer, message).to_le_bytes()
    }
}
