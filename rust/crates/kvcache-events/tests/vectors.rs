//! The wire format against the vectors of `vectors.json`, which the Python tests and the documentation share.

use kvcache_events::{Batch, Event, Key, Name, Stored, decode, encode};
use serde_json::Value;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex"))
        .collect()
}

fn key(value: &Value) -> Key {
    bytes(value.as_str().expect("hex")).try_into().expect("16 bytes")
}

fn number<T: TryFrom<u64>>(value: &Value) -> T {
    let number = value.as_u64().and_then(|number| number.try_into().ok());
    number.expect("a number")
}

fn name(value: &Value) -> Option<Name> {
    value.as_str().map(Name::from)
}

fn event(value: &Value) -> Event {
    let keys = || value["keys"].as_array().expect("keys").iter().map(key).collect();
    let required = |field: &str| name(&value[field]).expect("a name");
    match value["kind"].as_str() {
        Some("stored") => Event::Stored(Stored {
            keys: keys(),
            parent: value["parent"].is_string().then(|| key(&value["parent"])),
            token_ids: value["token_ids"]
                .as_array()
                .expect("ids")
                .iter()
                .map(number)
                .collect(),
            block_size: number(&value["block_size"]),
            group: number(&value["group"]),
            tier: required("tier"),
            lora: name(&value["lora"]),
            has_extra_keys: value["has_extra_keys"] == true,
        }),
        Some("removed") => Event::Removed {
            keys: keys(),
            group: number(&value["group"]),
            tier: required("tier"),
        },
        Some("moved") => Event::Moved {
            keys: keys(),
            group: number(&value["group"]),
            from: required("from"),
            to: required("to"),
            is_copy: value["is_copy"] == true,
        },
        kind => {
            assert_eq!(kind, Some("cleared"));
            Event::Cleared {
                tier: name(&value["tier"]),
            }
        }
    }
}

#[test]
fn vectors_encode_and_decode() {
    let vectors = serde_json::from_str::<Vec<Value>>(include_str!("vectors.json")).expect("JSON");
    assert!(vectors.len() >= 5);
    for vector in &vectors {
        let events = vector["events"].as_array().expect("events");
        let batch = Batch {
            epoch: number(&vector["epoch"]),
            seq: number(&vector["seq"]),
            is_snapshot: vector["is_snapshot"] == true,
            events: events.iter().map(event).collect(),
        };
        let encoded = encode(&batch).expect("a good batch");
        let hex = encoded
            .iter()
            .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        assert_eq!(vector["bytes"], hex, "{}", vector["name"]);
        assert_eq!(decode(&encoded), Ok(batch));
    }
}
