//! The runtime's interfaces that the node calls. The code itself is always the chain's own.

use sp_core::OpaqueMetadata;
use sp_core::crypto::KeyTypeId;
use sp_runtime::ApplyExtrinsicResult;
use sp_runtime::traits::Block as BlockT;
use sp_runtime::transaction_validity::{TransactionSource, TransactionValidity};

use crate::account::AnyAccount;
use crate::{Block, Header};

#[allow(dead_code, reason = "only its interfaces are used, never a value of it")]
pub struct Runtime;

sp_api::impl_runtime_apis! {
    impl sp_api::Core<Block> for Runtime {
        fn version() -> sp_version::RuntimeVersion { unimplemented!() }
        fn execute_block(_: <Block as BlockT>::LazyBlock) { unimplemented!() }
        fn initialize_block(_: &Header) -> sp_runtime::ExtrinsicInclusionMode { unimplemented!() }
    }
    impl sp_api::Metadata<Block> for Runtime {
        fn metadata() -> OpaqueMetadata { unimplemented!() }
        fn metadata_at_version(_: u32) -> Option<OpaqueMetadata> { unimplemented!() }
        fn metadata_versions() -> Vec<u32> { unimplemented!() }
    }
    impl sp_block_builder::BlockBuilder<Block> for Runtime {
        fn apply_extrinsic(_: <Block as BlockT>::Extrinsic) -> ApplyExtrinsicResult { unimplemented!() }
        fn finalize_block() -> Header { unimplemented!() }
        fn inherent_extrinsics(_: sp_inherents::InherentData) -> Vec<<Block as BlockT>::Extrinsic> { unimplemented!() }
        fn check_inherents(_: <Block as BlockT>::LazyBlock, _: sp_inherents::InherentData) -> sp_inherents::CheckInherentsResult { unimplemented!() }
    }
    impl sp_transaction_pool::runtime_api::TaggedTransactionQueue<Block> for Runtime {
        fn validate_transaction(_: TransactionSource, _: <Block as BlockT>::Extrinsic, _: <Block as BlockT>::Hash) -> TransactionValidity { unimplemented!() }
    }
    impl sp_session::SessionKeys<Block> for Runtime {
        fn generate_session_keys(_: Vec<u8>, _: Option<Vec<u8>>) -> sp_session::OpaqueGeneratedSessionKeys { unimplemented!() }
        fn decode_session_keys(_: Vec<u8>) -> Option<Vec<(Vec<u8>, KeyTypeId)>> { unimplemented!() }
    }
    impl frame_system_rpc_runtime_api::AccountNonceApi<Block, AnyAccount, u32> for Runtime {
        fn account_nonce(_: AnyAccount) -> u32 { unimplemented!() }
    }
}
