//! `payment_queryInfo`, as nodes with fees have it: what an extrinsic would cost.

use std::sync::Arc;

use codec::{Compact, Decode, Encode};
use jsonrpsee::RpcModule;
use jsonrpsee::types::ErrorObjectOwned;
use sc_client_api::{CallExecutor, ExecutorProvider};
use serde_json::{Value, json};
use sp_blockchain::HeaderBackend;
use sp_core::Bytes;
use sp_core::traits::CallContext;

use crate::{Client, Hash};

/// The runtime's answer: weight, class, fee.
type DispatchInfo = ((Compact<u64>, Compact<u64>), u8, u128);

pub(crate) fn module(client: Arc<Client>) -> RpcModule<Arc<Client>> {
    let mut module = RpcModule::new(client);
    module
        .register_method("payment_queryInfo", |params, client, _| {
            let mut params = params.sequence();
            let extrinsic: Bytes = params.next()?;
            let at: Option<Hash> = params.optional_next()?;
            query(client, &extrinsic, at).map_err(|why| {
                ErrorObjectOwned::owned(1, "Unable to query dispatch info.", Some(why))
            })
        })
        .expect("the method has one name");
    module
}

fn query(client: &Client, extrinsic: &[u8], at: Option<Hash>) -> Result<Value, String> {
    let mut call = extrinsic.to_vec();
    call.extend(u32::try_from(extrinsic.len()).map_err(|error| error.to_string())?.encode());
    let at = at.unwrap_or_else(|| client.info().best_hash);
    let answer = client
        .executor()
        .call(at, "TransactionPaymentApi_query_info", &call, CallContext::Offchain)
        .map_err(|error| error.to_string())?;
    let (weight, class, fee) =
        DispatchInfo::decode(&mut &*answer).map_err(|error| error.to_string())?;
    let class = ["normal", "operational", "mandatory"].get(usize::from(class));
    Ok(json!({
        "weight": {"ref_time": weight.0.0, "proof_size": weight.1.0},
        "class": class,
        "partialFee": fee.to_string(),
    }))
}
