//! Owns the merge list that a scored vocabulary implies. Knows nothing of files.

use std::collections::HashMap;

use super::piece_kinds::{NORMAL, USER_DEFINED};

/// Longer pieces have no merges: their number is that of the ways to cut the piece in two.
const MAX_PIECE_CHARS: usize = 1024;

/// Every way to split a piece into two pieces, best score first.
pub(crate) fn merges_from_scores(pieces: &[&str], kinds: &[i128], scores: &[f64]) -> Vec<[String; 2]> {
    let mergeable = |id: usize| matches!(kinds[id], NORMAL | USER_DEFINED);
    let ids: HashMap<&str, usize> = pieces
        .iter()
        .enumerate()
        .map(|(id, &piece)| (piece, id))
        .collect();
    let mut merges = Vec::new();
    for (id, piece) in pieces.iter().enumerate().filter(|(id, _)| mergeable(*id)) {
        for (at, _) in piece.char_indices().take(MAX_PIECE_CHARS).skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right))
                && mergeable(left_id)
                && mergeable(right_id)
            {
                merges.push((scores[id], id, left_id, right_id));
            }
        }
    }
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then(a.1.cmp(&b.1))
            .then((a.2, a.3).cmp(&(b.2, b.3)))
    });
    let text = |id: usize| pieces[id].to_owned();
    merges
        .into_iter()
        .map(|(_, _, left, right)| [text(left), text(right)])
        .collect()
}
