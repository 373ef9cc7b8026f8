//! Rates, counts and byte budgets. The time is an argument.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket.
#[derive(Debug)]
pub(crate) struct RateLimit {
    interval: Duration,
    burst: u32,
    /// When the bucket will be full again.
    full_at: Mutex<Option<Instant>>,
}

impl RateLimit {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, burst: burst.max(1), full_at: Mutex::default() }
    }

    pub(crate) fn try_take(&self, now: Instant) -> bool {
        let mut full_at = self.lock();
        let after = full_at.map_or(now, |at| at.max(now)) + self.interval;
        let is_granted = after <= now + self.interval * self.burst;
        if is_granted {
            *full_at = Some(after);
        }
        is_granted
    }

    /// Takes a token in advance. Returns how long to wait before using it.
    pub(crate) fn take(&self, now: Instant) -> Duration {
        let mut full_at = self.lock();
        let after = full_at.map_or(now, |at| at.max(now)) + self.interval;
        *full_at = Some(after);
        after.saturating_duration_since(now + self.interval * self.burst)
    }

    fn is_full(&self, now: Instant) -> bool {
        self.lock().is_none_or(|at| at <= now)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.full_at.lock().expect("no code panics while it holds a bucket")
    }
}

/// One bucket for each credential or environment.
#[derive(Debug)]
pub(crate) struct RateLimits<K> {
    per_second: u32,
    burst: u32,
    buckets: Mutex<HashMap<K, Arc<RateLimit>>>,
}

impl<K: Clone + Eq + Hash> RateLimits<K> {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second, burst, buckets: Mutex::default() }
    }

    pub(crate) fn of(&self, key: &K) -> Arc<RateLimit> {
        let mut buckets = self.buckets.lock().expect("no code panics while it holds the buckets");
        let new = || Arc::new(RateLimit::new(self.per_second, self.burst));
        Arc::clone(buckets.entry(key.clone()).or_insert_with(new))
    }

    /// Drops buckets that are full and unused.
    pub(crate) fn forget_idle(&self, now: Instant) {
        let mut buckets = self.buckets.lock().expect("no code panics while it holds the buckets");
        buckets.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_full(now));
    }
}

#[derive(Debug)]
pub(crate) struct Counts<K: Eq + Hash> {
    limit: usize,
    counts: Mutex<HashMap<K, usize>>,
}

/// One counted use; dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct Counted<K: Eq + Hash> {
    counts: Arc<Counts<K>>,
    key: K,
}

impl<K: Clone + Eq + Hash> Counts<K> {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, counts: Mutex::default() })
    }

    pub(crate) fn try_add(self: &Arc<Self>, key: &K) -> Option<Counted<K>> {
        let mut counts = self.counts.lock().expect("no code panics while it holds the counts");
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(Counted { counts: Arc::clone(self), key: key.clone() })
    }
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut counts =
            self.counts.counts.lock().expect("no code panics while it holds the counts");
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// A limit on the bytes of several queues together.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    limit: usize,
    used: AtomicUsize,
}

impl ByteBudget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn try_add(&self, bytes: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// One value per key, for as long as the value is in use.
pub(crate) struct PerKey<K, V> {
    make: Box<dyn Fn() -> V + Send + Sync>,
    values: Mutex<HashMap<K, Arc<V>>>,
}

impl<K: Clone + Eq + Hash, V> PerKey<K, V> {
    pub(crate) fn new(make: impl Fn() -> V + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), values: Mutex::default() }
    }

    pub(crate) fn of(&self, key: &K) -> Arc<V> {
        let mut values = self.values.lock().expect("no code panics while it holds the values");
        values.retain(|_, value| Arc::strong_count(value) > 1);
        Arc::clone(values.entry(key.clone()).or_insert_with(|| Arc::new((self.make)())))
    }
}

impl<K, V> fmt::Debug for PerKey<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_grants_its_burst_and_then_its_rate() {
        let (limit, start) = (RateLimit::new(10, 5), Instant::now());
        let granted = (0..20).filter(|_| limit.try_take(start)).count();
        assert_eq!(granted, 5);
        let later = start + Duration::from_millis(250);
        assert_eq!((0..20).filter(|_| limit.try_take(later)).count(), 2);
        let much_later = start + Duration::from_secs(60);
        assert_eq!((0..20).filter(|_| limit.try_take(much_later)).count(), 5);
    }

    #[test]
    fn waiting_spreads_tokens_taken_in_advance() {
        let (limit, start) = (RateLimit::new(10, 2), Instant::now());
        let waits: Vec<_> = (0..5).map(|_| limit.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 100, 200, 300]);
        assert_eq!(limit.take(start + Duration::from_secs(5)), Duration::ZERO);
    }

    #[test]
    fn only_idle_buckets_are_forgotten() {
        let (limits, now) = (RateLimits::new(1, 1), Instant::now());
        let held = limits.of(&"held");
        assert!(limits.of(&"used").try_take(now));
        limits.of(&"idle");
        limits.forget_idle(now);
        assert_eq!(limits.buckets.lock().unwrap().len(), 2);
        drop(held);
        limits.forget_idle(now + Duration::from_secs(2));
        assert_eq!(limits.buckets.lock().unwrap().len(), 0);
    }

    #[test]
    fn dropping_a_counted_use_makes_room_for_another() {
        let counts = Counts::new(2);
        let first = counts.try_add(&"a").unwrap();
        let _second = counts.try_add(&"a").unwrap();
        assert!(counts.try_add(&"a").is_none());
        assert!(counts.try_add(&"b").is_some());
        drop(first);
        assert!(counts.try_add(&"a").is_some());
    }

    #[test]
    fn a_budget_is_shared_and_released() {
        let budgets = PerKey::new(|| ByteBudget::new(100));
        let (one, other) = (budgets.of(&"a"), budgets.of(&"a"));
        assert!(one.try_add(60));
        assert!(!other.try_add(60));
        one.remove(60);
        assert!(other.try_add(100));
    }
}
