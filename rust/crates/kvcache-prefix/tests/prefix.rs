//! The block hash against fixed vectors and its own layout, the index against a model.

use std::collections::HashMap;

use kvcache_prefix::{
    BlockHash, BlockName, ChainKeys, KeyError, Media, PrefixIndex, extend_chain, root_hash,
};
use proptest::prelude::*;

fn chain(tokens: &[u32], block_size: usize, keys: &ChainKeys) -> Vec<BlockHash> {
    let mut hashes = Vec::new();
    extend_chain(
        &mut hashes,
        root_hash(block_size, keys),
        tokens,
        block_size,
        &keys.media,
    );
    hashes
}

fn hex(hash: BlockHash) -> String {
    format!("{:032x}", u128::from_be_bytes(hash.to_bytes()))
}

fn blake3_128(message: &[u8]) -> [u8; 16] {
    blake3::hash(message).as_bytes()[..16]
        .try_into()
        .expect("32 bytes hold 16")
}

fn keyed_128(parent: [u8; 16], message: &[u8]) -> [u8; 16] {
    let mut key = [0; 32];
    key[..16].copy_from_slice(&parent);
    key[16..].copy_from_slice(b"llm-kvcache/node");
    blake3::keyed_hash(&key, message).as_bytes()[..16]
        .try_into()
        .expect("32 bytes hold 16")
}

/// The same vectors stand in the README of llm-kvcache.
#[test]
fn fixed_vectors() {
    let tokens = (0..40).collect::<Vec<u32>>();
    let plain = chain(&tokens, 16, &ChainKeys::default())
        .into_iter()
        .map(hex)
        .collect::<Vec<_>>();
    assert_eq!(
        plain,
        [
            "3d02f0fc5bd60653d9e44ca11379b90b",
            "b8f4749da70b8e5a7c51dc368c1d95e4"
        ]
    );
    let keys = ChainKeys {
        salt: Some(b"tenant".to_vec()),
        lora: Some("adapter@3".into()),
        media: vec![Media {
            offset: 20,
            digest: vec![1; 32],
        }],
    };
    let keyed = chain(&tokens, 16, &keys).into_iter().map(hex).collect::<Vec<_>>();
    assert_eq!(
        keyed,
        [
            "644fda0a198d2beae74d79fb89e3399d",
            "099e2b66abb92d0069b86443c32728dc"
        ]
    );
}

#[test]
fn follows_the_layout_byte_by_byte() {
    let keys = ChainKeys {
        salt: Some(b"s".to_vec()),
        lora: None,
        media: vec![Media {
            offset: 3,
            digest: vec![9, 8],
        }],
    };
    let root = blake3_128(b"llm-kvcache/root\x02\0\0\0\x02\0\0\0\x01\x01\0\0\0s");
    let first = keyed_128(root, b"\x05\0\0\0\x06\0\0\0");
    let second = keyed_128(first, b"\x07\0\0\0\x08\x01\0\0\x03\x06\0\0\0\x01\0\0\0\x09\x08");
    let hashes = chain(&[5, 6, 7, 264, 1], 2, &keys);
    assert_eq!(
        hashes.iter().map(|hash| hash.to_bytes()).collect::<Vec<_>>(),
        [first, second]
    );
}

#[test]
fn names_of_groups_differ_and_lead_back() {
    let hash = chain(&[1, 2], 2, &ChainKeys::default())[0];
    let names = (0..4)
        .map(|group| BlockName::new(hash, group))
        .collect::<Vec<_>>();
    for (group, name) in names.iter().enumerate() {
        assert_eq!(name.hash(group), hash);
        assert!(!names[..group].contains(name));
    }
    assert_eq!(names[0].to_u128(), u128::from_le_bytes(hash.to_bytes()));
}

/// Long blocks and blocks with media take another path than short ones; the bytes are the same.
#[test]
fn every_length_follows_the_layout() {
    let root = root_hash(200, &ChainKeys::default());
    for count in [1, 16, 127, 128, 129, 200] {
        let tokens = (0..count).map(|token| token * 7919).collect::<Vec<u32>>();
        let message = tokens
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect::<Vec<_>>();
        let hash = kvcache_prefix::next_hash(root, &tokens, 0, &[]);
        assert_eq!(
            hash.to_bytes(),
            keyed_128(root.to_bytes(), &message),
            "{count} tokens"
        );
    }
}

#[test]
fn refuses_media_without_a_hash() {
    let item = |offset, digest: &[u8]| Media {
        offset,
        digest: digest.to_vec(),
    };
    let check = |media| {
        ChainKeys {
            media,
            ..ChainKeys::default()
        }
        .validate(4)
    };
    assert_eq!(check(vec![item(0, b"a"), item(3, b"b")]), Ok(()));
    assert_eq!(
        check(vec![item(1, b"a"), item(1, b"b")]),
        Err(KeyError::MediaOrder(1))
    );
    assert_eq!(
        check(vec![item(2, b"a"), item(1, b"b")]),
        Err(KeyError::MediaOrder(1))
    );
    assert_eq!(check(vec![item(1, b"")]), Err(KeyError::EmptyDigest(1)));
    assert_eq!(check(vec![item(4, b"a")]), Err(KeyError::MediaBeyondTokens(4)));
}

proptest! {
    #[test]
    fn chains_can_be_extended_in_any_steps(
        tokens in prop::collection::vec(0..4_u32, 0..40), block_size in 1..6_usize, cut in 0..40_usize,
    ) {
        let keys = ChainKeys::default();
        let mut hashes = chain(&tokens[..cut.min(tokens.len())], block_size, &keys);
        extend_chain(&mut hashes, root_hash(block_size, &keys), &tokens, block_size, &[]);
        prop_assert_eq!(hashes, chain(&tokens, block_size, &keys));
    }

    #[test]
    fn equal_hashes_mean_equal_prefixes(
        a in prop::collection::vec(0..2_u32, 0..12), b in prop::collection::vec(0..2_u32, 0..12),
    ) {
        let keys = ChainKeys::default();
        for (i, (x, y)) in chain(&a, 2, &keys).iter().zip(chain(&b, 2, &keys)).enumerate() {
            let end = 2 * (i + 1);
            prop_assert_eq!(*x == y, a[..end] == b[..end]);
        }
    }

    #[test]
    fn the_index_agrees_with_a_map(operations in prop::collection::vec((0..6_u32, 0..5_u32, any::<bool>()), 0..60)) {
        let hash = |token| chain(&[token], 1, &ChainKeys::default())[0];
        let names = (0..6).map(|name| BlockName::new(hash(name / 2), name as usize % 2)).collect::<Vec<_>>();
        let mut index = PrefixIndex::new(5);
        let mut model = HashMap::new();
        for (name, block, insert) in operations {
            if insert {
                let fits = !model.contains_key(&name) && !model.values().any(|held| *held == block);
                prop_assert_eq!(index.insert(names[name as usize], block), fits);
                if fits {
                    model.insert(name, block);
                }
            } else {
                let before = model.len();
                model.retain(|_, held| *held != block);
                prop_assert_eq!(index.remove_block(block).is_some(), model.len() < before);
            }
            for (name, full) in names.iter().enumerate() {
                prop_assert_eq!(index.get(*full), model.get(&(name as u32)).copied());
            }
            prop_assert_eq!(index.len(), model.len());
        }
        prop_assert!(!index.insert(names[0], 5), "block 5 is outside the index");
    }
}
