//! Owns the recovery of a merge list from token ranks. Knows nothing of files or of ids.

use std::collections::HashMap;

/// Longer tokens are refused by the readers: the recovery takes time quadratic in the length of a token.
pub(super) const MAX_TOKEN_BYTES: usize = 1024;

/// The merges, lowest rank first: for each token the two parts that its own merging by lower ranks ends with.
///
/// A token that this leaves in more than two parts is never made by merging; it has no entry.
pub(super) fn merges<'a>(ranks: &HashMap<&'a [u8], u32>) -> Vec<(&'a [u8], &'a [u8])> {
    let mut tokens: Vec<(&[u8], u32)> = ranks.iter().map(|(&token, &rank)| (token, rank)).collect();
    tokens.sort_unstable_by_key(|&(_, rank)| rank);
    tokens
        .into_iter()
        .filter(|(token, _)| token.len() > 1)
        .filter_map(|(token, rank)| last_merge(token, rank, ranks).map(|at| token.split_at(at)))
        .collect()
}

/// Where the last merge of `token` joins it, if merges of ranks below `limit` make two parts of it.
fn last_merge(token: &[u8], limit: u32, ranks: &HashMap<&[u8], u32>) -> Option<usize> {
    // `starts` are the parts' first bytes with the token's end behind them; `joined[i]` is the rank of parts i and i + 1.
    let mut starts: Vec<usize> = (0..=token.len()).collect();
    let rank_of = |start: usize, end: usize| {
        let rank = ranks.get(&token[start..end]).copied().unwrap_or(u32::MAX);
        if rank < limit { rank } else { u32::MAX }
    };
    let mut joined: Vec<u32> = (0..token.len() - 1).map(|at| rank_of(at, at + 2)).collect();
    while joined.len() > 1 {
        let (at, &rank) = joined.iter().enumerate().min_by_key(|&(_, rank)| rank)?;
        if rank == u32::MAX {
            return None;
        }
        starts.remove(at + 1);
        joined.remove(at);
        if at < joined.len() {
            joined[at] = rank_of(starts[at], starts[at + 2]);
        }
        if at > 0 {
            joined[at - 1] = rank_of(starts[at - 1], starts[at + 1]);
        }
    }
    Some(starts[1])
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::merges;

    #[test]
    fn each_token_gets_the_last_step_of_its_own_merging() {
        let tokens: [&[u8]; 6] = [b"a", b"b", b"c", b"bc", b"ab", b"abc"];
        let ranks: HashMap<&[u8], u32> = tokens
            .iter()
            .zip(0..)
            .map(|(&token, rank)| (token, rank))
            .collect();
        let expected: Vec<(&[u8], &[u8])> = vec![(b"b", b"c"), (b"a", b"b"), (b"a", b"bc")];
        assert_eq!(merges(&ranks), expected);
    }

    #[test]
    fn a_token_that_merging_cannot_make_has_no_entry() {
        let tokens: [&[u8]; 4] = [b"a", b"b", b"c", b"abc"];
        let ranks: HashMap<&[u8], u32> = tokens
            .iter()
            .zip(0..)
            .map(|(&token, rank)| (token, rank))
            .collect();
        assert!(merges(&ranks).is_empty());
    }
}
