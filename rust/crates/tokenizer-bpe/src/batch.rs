//! Owns encoding many texts on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::encoder::FastBpe;

/// A thread costs about as much to start as this many bytes take to encode.
const BYTES_PER_THREAD: usize = 16 * 1024;

impl FastBpe {
    /// The ids of each text, in order, on up to `num_threads` threads (0: as many as the machine runs at once).
    /// Small batches use fewer.
    pub fn encode_batch<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        add_special_tokens: bool,
        num_threads: usize,
    ) -> Vec<Vec<u32>> {
        self.over_batch(texts, num_threads, |bpe, text, workspace| {
            bpe.encode_with(text, add_special_tokens, workspace)
        })
    }

    fn over_batch<T: AsRef<str> + Sync, R: Send + Default>(
        &self,
        texts: &[T],
        num_threads: usize,
        work: impl Fn(&Self, &str, &mut crate::model::Workspace) -> R + Sync,
    ) -> Vec<R> {
        let next = AtomicUsize::new(0);
        let share = || {
            let mut workspace = self.take();
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(text) = texts.get(at) else { break };
                done.push((at, work(self, text.as_ref(), &mut workspace)));
            }
            self.give_back(workspace);
            done
        };
        let others = threads_for(texts, num_threads) - 1;
        let mut results: Vec<R> = std::iter::repeat_with(R::default).take(texts.len()).collect();
        thread::scope(|scope| {
            let handles: Vec<_> = (0..others).map(|_| scope.spawn(share)).collect();
            let mut parts = vec![share()];
            for handle in handles {
                match handle.join() {
                    Ok(part) => parts.push(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            for (at, result) in parts.into_iter().flatten() {
                results[at] = result;
            }
        });
        results
    }
}

fn threads_for<T: AsRef<str>>(texts: &[T], wanted: usize) -> usize {
    let most = match wanted {
        0 => thread::available_parallelism().map_or(1, std::num::NonZero::get),
        wanted => wanted,
    };
    let bytes: usize = texts.iter().map(|text| text.as_ref().len()).sum();
    most.min(texts.len()).min(bytes / BYTES_PER_THREAD).max(1)
}
