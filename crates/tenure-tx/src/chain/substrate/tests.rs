//! Signing and reading against the metadata of published chains, and against extrinsics that another
//! library signed.

use std::sync::LazyLock;

use frame_metadata::{RuntimeMetadata, RuntimeMetadataPrefixed, v15};
use parity_scale_codec::{Decode as _, Encode as _};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_testkit::substrate::{SIGNED_ELSEWHERE, storagehub_parachain, storagehub_solochain};

use super::extrinsic::{Period, Terms, block};
use super::*;
use crate::account::SignError;
use crate::chain::Receipt;

const ALITH: &str = "0x5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133";
const VERSION: Version = Version { spec: 7, transaction: 3 };
const GENESIS: Hash = Hash([0x11; 32]);
const BIRTH: Hash = Hash([0x22; 32]);

fn evm() -> Runtime {
    Runtime::read(&storagehub_solochain(), VERSION, GENESIS).expect("metadata of version 14")
}

fn parachain() -> Runtime {
    Runtime::read(&storagehub_parachain(), VERSION, GENESIS).expect("metadata of version 14")
}

fn named(pallet: &str, call: &str, args: Value) -> SubstrateCall {
    SubstrateCall { pallet: pallet.to_owned(), call: call.to_owned(), args }
}

#[derive(Deserialize)]
struct Elsewhere {
    runtime: String,
    scheme: String,
    suri: String,
    remark: String,
    nonce: u64,
    tip: String,
    period: u64,
    number: u64,
    raw: String,
}

#[test]
fn the_same_extrinsic_is_signed_as_by_another_library() {
    let all: Vec<Elsewhere> = serde_json::from_str(SIGNED_ELSEWHERE).expect("ours");
    assert_eq!(all.len(), 6);
    let (evm, parachain) = (evm(), parachain());
    for one in all {
        let runtime = if one.runtime.ends_with("evm") { &evm } else { &parachain };
        let key = Key::from_suri(&one.suri, one.scheme.parse().expect("known")).expect("a key");
        let call = runtime.encode_call(&named("System", "remark", json!({"remark": one.remark})));
        let mortal = Some((Period::new(one.period), block(one.number, BIRTH)));
        let tip = one.tip.parse().expect("a number");
        let terms = Terms { nonce: one.nonce, tip, mortal };
        let ours = runtime.sign(&call.expect("a call"), &terms, &key).expect("signs");
        let raw = crate::status::unhex(&one.raw).expect("hex");
        match key.scheme() {
            Scheme::Ecdsa | Scheme::Ethereum => assert_eq!(ours, raw, "{}", one.runtime),
            // Not deterministic: theirs verifies below, and the rest is the same.
            Scheme::Sr25519 => {
                let signature = 2 + 1 + 1 + 32 + 1..2 + 1 + 1 + 32 + 1 + 64;
                let rest = |raw: &[u8]| [&raw[..signature.start], &raw[signature.end..]].concat();
                assert_eq!(rest(&ours), rest(&raw));
                let ours = runtime.parse(&ours).expect("ours");
                assert!(runtime.was_signed(&ours, block(one.number, BIRTH)));
            }
        }
        let read = runtime.parse(&raw).expect("ours");
        assert_eq!((read.nonce, read.tip), (Some(one.nonce), Some(tip)));
        assert_eq!(read.account, key.account().as_bytes());
        let era = read.era.expect("mortal");
        assert_eq!((era.period.blocks(), era.birth(one.number + 63)), (64, one.number));
        assert_eq!(era.birth(one.number + 64), one.number + 64, "read as born later from then on");
        assert!(runtime.was_signed(&read, block(one.number, BIRTH)));
        assert!(!runtime.was_signed(&read, block(one.number + 64, Hash([0x23; 32]))));
        let later = Runtime { version: Version { spec: 8, ..VERSION }, ..runtime.clone() };
        assert!(!later.was_signed(&read, block(one.number, BIRTH)), "of another runtime");
    }
}

#[test]
fn metadata_of_version_15_says_the_same() {
    let (old, all) = (parachain(), storagehub_parachain());
    let all = RuntimeMetadataPrefixed::decode(&mut &all[..]).expect("metadata");
    let RuntimeMetadata::V14(all) = all.1 else { panic!("another version") };
    let pallets = all.pallets.into_iter().map(|one| v15::PalletMetadata {
        name: one.name,
        storage: one.storage,
        calls: one.calls,
        event: one.event,
        constants: one.constants,
        error: one.error,
        index: one.index,
        docs: vec![],
    });
    let extensions = all.extrinsic.signed_extensions.into_iter();
    let extensions = extensions.map(|one| v15::SignedExtensionMetadata {
        identifier: one.identifier,
        ty: one.ty,
        additional_signed: one.additional_signed,
    });
    let whole = all.types.resolve(all.extrinsic.ty.id).expect("a type");
    let part = |name: &str| {
        let part = whole.type_params.iter().find(|part| part.name == name);
        part.and_then(|part| part.ty).expect("it has one")
    };
    let (call_ty, ty) = (part("Call"), all.ty);
    let extrinsic = v15::ExtrinsicMetadata {
        version: all.extrinsic.version,
        address_ty: part("Address"),
        call_ty,
        signature_ty: part("Signature"),
        extra_ty: part("Extra"),
        signed_extensions: extensions.collect(),
    };
    let new = v15::RuntimeMetadataV15 {
        pallets: pallets.collect(),
        extrinsic,
        ty,
        apis: vec![],
        outer_enums: v15::OuterEnums {
            call_enum_ty: call_ty,
            event_enum_ty: call_ty,
            error_enum_ty: call_ty,
        },
        custom: v15::CustomMetadata { map: Default::default() },
        types: all.types,
    };
    let new = RuntimeMetadataPrefixed::from(new).encode();
    let new = Runtime::read(&new, VERSION, GENESIS).expect("metadata of version 15");
    assert_eq!((&new.extensions, new.address), (&old.extensions, old.address));
    assert_eq!((new.call, new.signature, new.events), (old.call, old.signature, old.events));
    assert_eq!(new.call_of(None), old.call_of(None));
}

#[test]
fn payment_in_the_chains_own_asset_says_that_there_is_no_other() {
    let mut runtime = evm();
    let terms = Terms { nonce: 0, tip: 7, mortal: None };
    let plain = runtime.payload(&[0, 0, 0], &terms).expect("known extensions");
    let payment = |one: &metadata::Extension| one.name == "ChargeTransactionPayment";
    let at = runtime.extensions.iter().position(payment).expect("it has one");
    runtime.extensions[at].name = "ChargeAssetTxPayment".to_owned();
    let asset = runtime.payload(&[0, 0, 0], &terms).expect("known extensions");
    // Call, immortal era, nonce, tip: then no asset.
    let (head, tail) = plain.split_at(3 + 1 + 1 + 1);
    assert_eq!(asset, [head, &[0], tail].concat());
}

#[test]
fn a_signature_covers_call_era_nonce_tip_versions_and_both_blocks() {
    let runtime = evm();
    let mortal = Some((Period::new(64), block(42, BIRTH)));
    let terms = Terms { nonce: 5, tip: 7, mortal };
    let payload = runtime.payload(&[0, 0, 0], &terms).expect("known extensions");
    let expected = [
        &[0, 0, 0][..],
        // Mortal(64, 42) as the SDK's own documentation writes it; nonce 5, tip 7, no metadata hash.
        &[0xa5, 0x02, 5 << 2, 7 << 2, 0],
        &7u32.to_le_bytes(),
        &3u32.to_le_bytes(),
        &GENESIS.0,
        &BIRTH.0,
        &[0],
    ];
    assert_eq!(payload, expected.concat());
    // A long one is signed as its hash.
    let long = runtime.payload(&[0; 300], &terms).expect("known extensions");
    assert_eq!(long.len(), 32);
}

#[test]
fn a_scheme_that_the_runtime_does_not_take_is_refused() {
    let (evm, parachain) = (evm(), parachain());
    assert_eq!(evm.usual_scheme(), Scheme::Ethereum);
    assert_eq!(parachain.usual_scheme(), Scheme::Sr25519);
    assert_eq!(evm.signature_tag(Scheme::Ethereum), Ok(None));
    assert_eq!(parachain.signature_tag(Scheme::Sr25519), Ok(Some(1)));
    assert_eq!(parachain.signature_tag(Scheme::Ecdsa), Ok(Some(2)));
    for (runtime, scheme) in
        [(&evm, Scheme::Sr25519), (&evm, Scheme::Ecdsa), (&parachain, Scheme::Ethereum)]
    {
        assert_eq!(runtime.signature_tag(scheme), Err(RuntimeError::Scheme(scheme)));
        let key = Key::from_suri(ALITH, scheme).expect("a key");
        let terms = Terms { nonce: 0, tip: 0, mortal: None };
        let refused = runtime.sign(&[0, 0, 0], &terms, &key);
        assert!(matches!(refused, Err(SignError::Key(_))), "{refused:?}");
    }
}

#[test]
fn an_extension_with_data_that_is_not_known_is_refused_by_name() {
    let mut runtime = evm();
    let nonce = runtime.extensions.iter().position(|one| one.name == "CheckNonce");
    runtime.extensions[nonce.expect("it has one")].name = "CheckSomething".to_owned();
    let terms = Terms { nonce: 0, tip: 0, mortal: None };
    let refused = runtime.payload(&[0, 0, 0], &terms).expect_err("not known");
    assert_eq!(refused, RuntimeError::Extension("CheckSomething".to_owned()));
    assert!(refused.to_string().contains("CheckSomething"), "{refused}");
}

#[test]
fn what_is_no_metadata_is_refused() {
    for bytes in
        [&b""[..], b"meta", b"meta\x0e", b"meta\x10\x00", &storagehub_solochain()[..100_000]]
    {
        assert!(Runtime::read(bytes, VERSION, GENESIS).is_err());
    }
}

#[test]
fn a_call_is_encoded_from_its_names() {
    let (evm, parachain) = (evm(), parachain());
    let remark = named("System", "remark", json!({"remark": "0x676d"}));
    assert_eq!(evm.encode_call(&remark).expect("a call"), [0, 0, 8, 0x67, 0x6d]);
    assert_eq!(evm.call_of(Some(&remark.encode())).expect("a call"), [0, 0, 8, 0x67, 0x6d]);
    assert_eq!(evm.call_of(Some(&[0, 0, 8, 0x67, 0x6d])).expect("SCALE").len(), 5);
    assert_eq!(evm.call_of(None).expect("a no-op"), [0, 0, 0]);
    let alice = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    for dest in [json!(alice), json!({"Id": alice})] {
        let args = json!({"dest": dest, "value": "1000000000000000"});
        let call = parachain.encode_call(&named("Balances", "transfer_keep_alive", args));
        let call = call.expect("a call");
        let account = account_of(alice).expect("an address");
        let value = parity_scale_codec::Compact(1_000_000_000_000_000u128).encode();
        assert_eq!(call[2..], [&[0][..], account.as_bytes(), &value].concat());
        parachain.check_call(&call).expect("whole");
    }
    // Calls of calls, options, and accounts of 20 bytes.
    let inner = json!({"System": {"remark": {"remark": "0x"}}});
    let batch = named("Utility", "batch", json!({"calls": [inner, inner]}));
    if let Ok(call) = parachain.encode_call(&batch) {
        assert_eq!(call[2..], [8, 0, 0, 0, 0, 0, 0]);
    }
    let alith = "0xf24ff3a9cf04c71dbc94d0b566f7a27b94566cac";
    let args = json!({"dest": alith, "value": 5});
    let call = evm.encode_call(&named("Balances", "transfer_keep_alive", args)).expect("a call");
    assert_eq!(call.len(), 2 + 20 + 1);
}

#[test]
fn a_call_that_does_not_fit_is_refused_with_its_place() {
    let runtime = parachain();
    let alice = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    for (pallet, call, args, said) in [
        ("Sytem", "remark", json!({"remark": "0x"}), "no \"Sytem\"; there is System, "),
        ("proofsdealer", "challenge", json!({}), "; there is ProofsDealer, "),
        (
            "System",
            "remrk",
            json!({"remark": "0x"}),
            "System: there is no \"remrk\"; there is remark, ",
        ),
        ("System", "remark", json!({}), "\"remark\" is missing; it has remark"),
        ("System", "remark", json!({"remark": "0x", "more": 1}), "no \"more\"; there is remark"),
        ("System", "remark", json!({"remrk": "0x"}), "no \"remrk\"; there is remark"),
        (
            "Balances",
            "transfer_keep_alive",
            json!({"to": alice, "value": 1}),
            "there is dest, value",
        ),
        ("Balances", "transfer_keep_alive", json!({"value": 1}), "it has dest, value"),
        ("System", "remark", json!({"remark": "0xabc"}), "System.remark.remark"),
        ("System", "remark", json!({"remark": "text"}), "in hex"),
        (
            "Balances",
            "transfer_keep_alive",
            json!({"dest": "0xf24ff3a9cf04c71dbc94d0b566f7a27b94566cac", "value": 1}),
            "account of 32 bytes",
        ),
        (
            "Balances",
            "transfer_keep_alive",
            json!({"dest": alice, "value": "340282366920938463463374607431768211456"}),
            "whole number",
        ),
        ("Balances", "transfer_keep_alive", json!({"dest": alice, "value": 1.5}), "whole number"),
        ("Balances", "transfer_keep_alive", json!({"dest": alice, "value": -1}), "whole number"),
    ] {
        let refused = runtime.encode_call(&named(pallet, call, args)).expect_err(said);
        assert!(refused.to_string().contains(said), "{refused} has no {said}");
    }
    for call in [&b""[..], &[0], &[0, 0], &[0, 0, 4], &[0, 0, 0, 0], &[250, 0], &[0, 250]] {
        let refused = runtime.call_of(Some(call));
        assert!(matches!(refused, Err(SignError::Malformed(_))), "{call:?}: {refused:?}");
    }
}

#[test]
fn a_call_that_nests_without_end_is_refused_and_costs_nothing() {
    let runtime = parachain();
    let sudo = [runtime.pallets.iter().find(|p| p.name == "Sudo").expect("it has one").index, 0];
    let mut deep = sudo.repeat(100_000);
    deep.extend([0, 0, 0]);
    assert!(runtime.check_call(&deep).is_err());
    // A list that claims more than there is.
    let huge = [&[0, 0][..], &[0x03, 0xff, 0xff, 0xff, 0xff]].concat();
    assert!(runtime.check_call(&huge).is_err());
}

/// Events as a block has them: the inherent's, then those of the extrinsic at place 1.
fn events(runtime: &Runtime, of_ours: Value) -> Vec<u8> {
    let info = json!({"weight": {"ref_time": 1, "proof_size": 0}, "class": "Normal",
                      "pays_fee": "Yes"});
    let mut all = vec![json!({"phase": {"ApplyExtrinsic": 0}, "topics": [],
        "event": {"System": {"ExtrinsicSuccess": {"dispatch_info": info}}}})];
    for event in of_ours.as_array().expect("a list") {
        let mut event = event.clone();
        if let Some(system) = event.get_mut("System")
            && let Some(end) = system.as_object_mut().and_then(|all| all.values_mut().next())
        {
            end["dispatch_info"] = info.clone();
        }
        all.push(json!({"phase": {"ApplyExtrinsic": 1}, "topics": [], "event": event}));
    }
    let mut bytes = Vec::new();
    let ty = runtime.events.expect("it has events");
    value::encode(&runtime.types, ty, &json!(all), &mut bytes).expect("events");
    bytes
}

#[test]
fn a_failed_call_is_told_with_the_modules_error_and_what_it_cost() {
    let runtime = parachain();
    let balances = runtime.pallets.iter().find(|pallet| pallet.name == "Balances");
    let balances = balances.expect("it has balances").index;
    let alice = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    let paid = json!({"TransactionPayment":
        {"TransactionFeePaid": {"who": alice, "actual_fee": "1234", "tip": "4"}}});
    let failed = |error: Value| json!({"System": {"ExtrinsicFailed": {"dispatch_error": error}}});
    let module = json!({"Module": {"index": balances, "error": "0x02000000"}});
    let cases = [
        (json!([paid, {"System": {"ExtrinsicSuccess": {}}}]), Some(true), None),
        (json!([paid, failed(module)]), Some(false), Some("Balances.InsufficientBalance")),
        (json!([paid, failed(json!("BadOrigin"))]), Some(false), Some("BadOrigin")),
        (
            json!([paid, failed(json!({"Token": "FundsUnavailable"}))]),
            Some(false),
            Some("Token.FundsUnavailable"),
        ),
        (json!([paid]), None, None),
    ];
    for (of_ours, success, reason) in cases {
        let receipt = runtime.receipt(&events(&runtime, of_ours), 1, 9);
        assert_eq!((receipt.number, receipt.success, receipt.fee), (Some(9), success, Some(1234)));
        match (&receipt.reason, reason) {
            (Some(said), Some(wanted)) => assert!(said.starts_with(wanted), "{said}"),
            (said, wanted) => assert_eq!(said.as_deref(), wanted),
        }
    }
    // What cannot be read is not known; it is never a success.
    let good = events(&runtime, json!([{"System": {"ExtrinsicSuccess": {}}}]));
    let receipt = runtime.receipt(&good[..good.len() / 2], 1, 9);
    assert_eq!(receipt, Receipt { number: Some(9), ..Receipt::default() });
}

#[test]
fn an_account_is_written_in_ss58() {
    let alice = "d43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d";
    let alice: AccountId = alice.parse().expect("32 bytes");
    assert_eq!(address(&alice), "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY");
}

#[test]
fn an_address_of_any_network_is_read_and_a_mistyped_one_is_not() {
    let alice = "0xd43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d";
    for text in [
        alice,
        "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
        "15oF4uVJwmo4TdGW7VfQxNLavjCXviqxT9S1MgbjMNHr6Sp5",
    ] {
        assert_eq!(account_of(text).map(|a| a.to_string()).as_deref(), Ok(alice), "{text}");
    }
    for text in ["", "5", "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQX", "0xzz"] {
        assert!(account_of(text).is_err(), "{text}");
    }
}

#[test]
fn an_extrinsic_must_be_as_long_as_it_says() {
    let of = |prefix: &[u8], body: usize| {
        let mut raw = prefix.to_vec();
        raw.resize(prefix.len() + body, 0);
        compact_length(&raw) == Some(raw.len())
    };
    assert!(of(&[3 << 2], 3));
    assert!(!of(&[3 << 2], 4));
    assert!(of(&[0x91, 0x01], 100));
    assert!(of(&[0x02, 0x00, 0x04, 0x00], 65_536));
    assert!(!of(&[], 0));
    assert!(!of(&[0xff; 9], 0));
}

static EVM: LazyLock<Runtime> = LazyLock::new(evm);
static GENUINE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let key = Key::from_suri(ALITH, Scheme::Ethereum).expect("a key");
    let terms = Terms { nonce: 1, tip: 1, mortal: Some((Period::new(64), block(9, BIRTH))) };
    EVM.sign(&[0, 0, 0], &terms, &key).expect("signs")
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_bytes_come_nothing_panics_and_nothing_is_read_beyond_them(
        place in 0usize..4000,
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut raw = GENUINE.clone();
        let at = place % raw.len();
        raw.splice(at..(at + bytes.len()).min(raw.len()), bytes.iter().copied());
        if let Ok(read) = EVM.parse(&raw) {
            prop_assert!(raw == *GENUINE || !EVM.was_signed(&read, block(9, BIRTH)));
        }
        let _ = EVM.check_call(&bytes);
        let receipt = EVM.receipt(&bytes, 0, 1);
        prop_assert_eq!(receipt.number, Some(1));
    }
}
