//! The pure heart of Tenure: lifecycle, lease arithmetic, gate, retry, keys, identity, epochs.
