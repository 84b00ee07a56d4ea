//! Owns the bounded log: which events are kept, and their numbers.

use std::collections::VecDeque;

use crate::{Batch, Event, EventError};

/// The latest events of a cache, numbered from 0.
#[derive(Debug, Clone)]
pub struct EventLog {
    capacity: usize,
    epoch: u64,
    events: VecDeque<Event>,
    /// Number of the first event kept.
    oldest: u64,
    weight: usize,
}

/// What an event counts for against the capacity.
fn weight(event: &Event) -> usize {
    event.num_keys().max(1)
}

impl EventLog {
    /// Makes an empty log that keeps events that name up to `capacity` blocks together (an event without blocks counts
    /// as one), and always the latest event. A capacity of 0 disables it.
    ///
    /// So memory is about `capacity * (16 + 4 * block_size)` bytes plus 300 an event at most, beyond one event.
    ///
    /// `epoch` is a number that grows from one life of the cache to the next, such as its start time.
    pub fn new(capacity: usize, epoch: u64) -> Self {
        Self {
            capacity,
            epoch,
            events: VecDeque::new(),
            oldest: 0,
            weight: 0,
        }
    }

    /// Makes a log that keeps nothing.
    pub fn disabled() -> Self {
        Self::new(0, 0)
    }

    /// Whether events are kept; where not, there is no need to make any.
    pub fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    /// Blocks that the kept events may name.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Which life of the cache this is.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of events kept.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether no event is kept.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Number of the oldest event kept, or of the next one where none is.
    pub fn oldest_seq(&self) -> u64 {
        self.oldest
    }

    /// Number that the next event will get.
    pub fn next_seq(&self) -> u64 {
        self.oldest + self.events.len() as u64
    }

    /// Appends an event; the oldest ones go where the capacity asks for it. A disabled log takes anything and keeps
    /// nothing.
    pub fn push(&mut self, event: Event) -> Result<(), EventError> {
        self.push_with(|| event)
    }

    /// [`push`](Self::push) of an event that is only made where the log is enabled.
    pub fn push_with(&mut self, make: impl FnOnce() -> Event) -> Result<(), EventError> {
        if !self.is_enabled() {
            return Ok(());
        }
        let event = make();
        event.validate()?;
        self.weight += weight(&event);
        self.events.push_back(event);
        while self.weight > self.capacity && self.events.len() > 1 {
            self.weight -= self.events.pop_front().map_or(0, |oldest| weight(&oldest));
            self.oldest += 1;
        }
        Ok(())
    }

    /// The events from number `seq` on; none where `seq` is the next number.
    pub fn since(&self, seq: u64) -> Result<Batch, EventError> {
        self.page(seq, usize::MAX)
    }

    /// [`since`](Self::since), the first `limit` events only: a follower far behind catches up in bounded steps.
    pub fn page(&self, seq: u64, limit: usize) -> Result<Batch, EventError> {
        if !self.is_enabled() {
            return Err(EventError::Disabled);
        }
        if seq < self.oldest || seq > self.next_seq() {
            return Err(EventError::Gap {
                wanted: seq,
                oldest: self.oldest,
                next: self.next_seq(),
            });
        }
        let skipped = (seq - self.oldest) as usize;
        Ok(Batch {
            epoch: self.epoch,
            seq,
            is_snapshot: false,
            events: self.events.range(skipped..).take(limit).cloned().collect(),
        })
    }

    /// Takes all events out, for a log with one follower. Where some were dropped since the last time, the batch's
    /// number shows it.
    pub fn drain(&mut self) -> Result<Batch, EventError> {
        if !self.is_enabled() {
            return Err(EventError::Disabled);
        }
        let (seq, next) = (self.oldest, self.next_seq());
        self.oldest = next;
        self.weight = 0;
        Ok(Batch {
            epoch: self.epoch,
            seq,
            is_snapshot: false,
            events: std::mem::take(&mut self.events).into(),
        })
    }

    /// Makes a snapshot of events that rebuild the state as it is now: the follower goes on with the next event.
    pub fn snapshot(&self, events: Vec<Event>) -> Result<Batch, EventError> {
        if !self.is_enabled() {
            return Err(EventError::Disabled);
        }
        events.iter().try_for_each(Event::validate)?;
        Ok(Batch {
            epoch: self.epoch,
            seq: self.next_seq(),
            is_snapshot: true,
            events,
        })
    }
}
