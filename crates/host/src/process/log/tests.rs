use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

fn log(memory_bytes: usize, spill_bytes: u64, on_full: OnFull) -> Log {
    Log::new(LogLimits { memory_bytes, spill_bytes, on_full, totals: Arc::default() })
}

fn exit() -> ExitRecord {
    ExitRecord::killed(std::time::Duration::ZERO)
}

const ALL: Budget = Budget { bytes: u64::MAX, events: usize::MAX };

/// Appends like the process's own task. Returns whether there was room.
async fn produce(log: &Log, bytes: impl Into<Bytes>) -> bool {
    let room = log.has_room();
    if room {
        log.append_output(Stream::Stdout, bytes.into());
        log.settle().await;
    }
    room
}

fn numbered(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(len).collect()
}

fn text(page: &Page) -> Vec<u8> {
    let bytes = page.events.iter().filter_map(|delivered| match &delivered.entry.event {
        Event::Output { bytes, .. } => Some(bytes.to_vec()),
        _ => None,
    });
    bytes.flatten().collect()
}

fn assert_contiguous(page: &Page, first: u64) {
    let seqs: Vec<_> = page.events.iter().map(|delivered| delivered.entry.seq).collect();
    let expected: Vec<_> = (first..first + seqs.len() as u64).collect();
    assert_eq!(seqs, expected);
}

#[tokio::test]
async fn output_exit_and_close_share_one_sequence() {
    let log = log(1 << 20, 0, OnFull::Block);
    produce(&log, "a").await;
    log.append_exit(exit());
    produce(&log, "late").await;
    log.append_closed();
    let page = Cursor::after(&log, 0).read(&log, ALL).await;
    assert_contiguous(&page, 1);
    assert_eq!(page.events.len(), 4);
    assert!(matches!(page.events[1].entry.event, Event::Exited(_)));
    assert!(matches!(page.events[3].entry.event, Event::Closed));
    assert!(page.complete && page.progress.closed);
    assert_eq!(page.progress.next_seq, 5);
}

#[tokio::test]
async fn a_read_returns_at_least_one_event_whatever_its_budget() {
    let log = log(1 << 20, 0, OnFull::Block);
    for _ in 0..4 {
        produce(&log, "12345").await;
    }
    let mut cursor = Cursor::after(&log, 0);
    let page = cursor.read(&log, Budget { bytes: 0, events: 0 }).await;
    assert_eq!((page.events.len(), page.complete), (1, false));
    let page = cursor.read(&log, Budget { bytes: 10, events: 99 }).await;
    assert_eq!((page.events.len(), page.complete), (2, false));
    assert_eq!(cursor.position(), 3);
    let page = cursor.read(&log, ALL).await;
    assert_eq!((page.events.len(), page.complete), (1, true));
}

#[tokio::test]
async fn a_cursor_beyond_the_end_finds_nothing() {
    let log = log(1 << 20, 0, OnFull::Block);
    produce(&log, "x").await;
    for seq in [1, 2, u64::MAX - 1, u64::MAX] {
        let page = Cursor::after(&log, seq).read(&log, ALL).await;
        assert!(page.events.is_empty() && page.complete && page.dropped == 0, "after {seq}");
    }
}

#[tokio::test]
async fn unconfirmed_output_spills_and_is_read_back_unchanged() {
    let log = log(64 << 10, 64 << 20, OnFull::Block);
    let mut expected = Vec::new();
    for number in 0..500u64 {
        let chunk = numbered(number, 1 + (number as usize * 37) % 9000);
        expected.extend_from_slice(&chunk);
        assert!(produce(&log, chunk).await);
        assert!(log.lock().memory_cost <= (64 << 10) + 16_000);
    }
    assert!(log.lock().spilled_bytes() > 1 << 20);
    let mut cursor = Cursor::after(&log, 0);
    let page = cursor.read(&log, ALL).await;
    assert_contiguous(&page, 1);
    assert_eq!(text(&page), expected);
    assert_eq!(page.dropped, 0);

    // A second reader that starts in the middle of a block sees the same events.
    let middle = Cursor::after(&log, 123).read(&log, ALL).await;
    assert_contiguous(&middle, 124);
    assert_eq!(middle.events.len(), 500 - 123);

    log.confirm(500);
    assert!(log.lock().spill.is_none());
}

#[tokio::test]
async fn many_tiny_chunks_stay_within_the_bound() {
    let log = log(64 << 10, 1 << 30, OnFull::Block);
    for _ in 0..20_000 {
        produce(&log, "x").await;
    }
    let state = log.lock();
    assert!(state.memory_cost <= (64 << 10) + ENTRY_OVERHEAD * 2);
    assert!(state.memory.len() * size_of::<Entry>() <= 64 << 10);
}

#[tokio::test]
async fn a_full_log_blocks_until_something_is_confirmed() {
    let log = log(10_000, 20_000, OnFull::Block);
    let mut produced = 0;
    while produce(&log, vec![7; 1000]).await {
        produced += 1;
        assert!(produced < 1000, "the log never filled up");
    }
    assert!(produced >= 25, "only {produced} fitted");
    log.confirm(1);
    log.confirm(produced / 2);
    log.wait_for_room().await;
    assert!(produce(&log, vec![8; 1000]).await);
    let page = Cursor::after(&log, produced / 2).read(&log, ALL).await;
    assert_contiguous(&page, produced / 2 + 1);
}

#[tokio::test]
async fn discarding_declares_the_exact_size_of_the_gap() {
    for spill_bytes in [0, 30_000] {
        let log = log(10_000, spill_bytes, OnFull::Discard);
        let mut cursor = Cursor::after(&log, 0);
        produce(&log, vec![0; 700]).await;
        cursor.read(&log, ALL).await;
        for _ in 0..500 {
            assert!(produce(&log, vec![1; 1000]).await);
        }
        let total = 700 + 500 * 1000;
        let page = cursor.read(&log, ALL).await;
        let got = text(&page).len() as u64;
        assert!(page.dropped > 0);
        assert_eq!(700 + page.dropped + got, total, "spill {spill_bytes}");
        assert!(page.events[1..].iter().all(|delivered| delivered.dropped == 0));

        let fresh = Cursor::after(&log, 0).read(&log, ALL).await;
        assert_eq!(fresh.dropped + text(&fresh).len() as u64, total);
    }
}

#[tokio::test]
async fn confirmed_output_stays_for_late_readers_up_to_the_bound() {
    let log = log(10_000, 0, OnFull::Block);
    for _ in 0..100 {
        assert!(produce(&log, vec![1; 500]).await);
        log.confirm(u64::MAX);
    }
    let page = Cursor::after(&log, 0).read(&log, ALL).await;
    assert!(page.events.len() >= 10 && page.dropped > 0);
    assert_eq!(page.dropped + text(&page).len() as u64, 50_000);
}

#[tokio::test]
async fn a_lagging_observer_sees_a_gap_and_continues() {
    let log = log(10_000, 0, OnFull::Block);
    let mut lagging = Cursor::after(&log, 0);
    for number in 0..100 {
        assert!(produce(&log, numbered(number, 500)).await);
        log.confirm(u64::MAX);
    }
    let page = lagging.read(&log, ALL).await;
    assert!(page.dropped > 0);
    let first = page.events[0].entry.seq;
    assert_contiguous(&page, first);
    assert_eq!(lagging.position(), 100);
}

#[tokio::test]
async fn a_block_released_while_it_is_read_becomes_a_gap() {
    let log = log(10_000, 1 << 20, OnFull::Block);
    for number in 0..400 {
        produce(&log, numbered(number, 1000)).await;
    }
    let mut cursor = Cursor::after(&log, 0);
    cursor.read(&log, Budget { bytes: 1, events: 1 }).await;
    log.confirm(390);
    let page = cursor.read(&log, ALL).await;
    // Entries that the cursor has already loaded are still valid; released ones are declared as a
    // gap.
    assert_eq!(1000 + page.dropped + text(&page).len() as u64, 400_000);
}

#[tokio::test]
async fn waiters_wake_on_events_and_on_close() {
    let log = Arc::new(log(1 << 20, 0, OnFull::Block));
    let waiter = tokio::spawn({
        let log = Arc::clone(&log);
        async move {
            log.wait_beyond(1).await;
            log.wait_exited().await;
            log.wait_closed().await;
            log.wait_beyond(u64::MAX).await;
        }
    });
    produce(&log, "a").await;
    tokio::task::yield_now().await;
    produce(&log, "b").await;
    log.append_exit(exit());
    log.append_closed();
    waiter.await.unwrap();
}

#[tokio::test]
async fn an_abandoned_log_wakes_its_waiters_and_has_no_events() {
    let log = log(1 << 20, 0, OnFull::Block);
    log.abandon();
    log.wait_closed().await;
    assert_eq!(log.progress().next_seq, 1);
}

#[tokio::test]
async fn listeners_are_notified_of_existing_and_new_events() {
    struct Counter(AtomicUsize);
    impl LogListener for Counter {
        fn log_grew(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let log = log(1 << 20, 0, OnFull::Block);
    produce(&log, "a").await;
    let counter = Arc::new(Counter(AtomicUsize::new(0)));
    let listener: Arc<dyn LogListener> = counter.clone();
    log.add_listener(&listener);
    produce(&log, "b").await;
    assert_eq!(counter.0.load(Ordering::Relaxed), 2);
    drop((listener, counter));
    produce(&log, "c").await;
    assert!(log.lock().listeners.iter().all(|listener| listener.strong_count() == 0));
}

#[tokio::test]
async fn a_snapshot_has_the_head_and_the_tail() {
    let log = log(64 << 10, 0, OnFull::Block);
    produce(&log, "begin ").await;
    log.append_output(Stream::Stderr, "oops".into());
    let small = log.snapshot();
    assert_eq!((&small.stdout[..], &small.stderr[..]), (&b"begin "[..], &b"oops"[..]));
    assert!(!small.truncated && small.terminal.is_empty());

    for _ in 0..200 {
        produce(&log, vec![b'.'; 1000]).await;
        log.confirm(u64::MAX);
    }
    produce(&log, "end").await;
    let large = log.snapshot();
    assert!(large.truncated);
    assert!(large.stdout.starts_with(b"begin .") && large.stdout.ends_with(b".end"));
    assert_eq!(&large.stderr[..], b"oops");
    assert!(large.stdout.len() <= (64 << 10) + (16 << 10));
}

#[tokio::test]
async fn a_batch_written_while_the_file_was_emptied_keeps_its_offset() {
    let limits = LogLimits {
        memory_bytes: 1000,
        spill_bytes: 1 << 20,
        on_full: OnFull::Block,
        totals: Arc::default(),
    };
    let log = Log::new(limits.clone());
    produce(&log, numbered(1, 1000)).await;
    produce(&log, numbered(2, 1000)).await;
    log.append_output(Stream::Stdout, numbered(3, 1000).into());
    let batch = log.lock().next_spill_batch(&limits).unwrap();
    // The contents of the file are confirmed while the batch is being written.
    log.confirm(1);
    log.spill(batch).await;
    let page = Cursor::after(&log, 1).read(&log, ALL).await;
    assert_contiguous(&page, 2);
    assert_eq!(text(&page), [numbered(2, 1000), numbered(3, 1000)].concat());
}

#[test]
fn a_reader_has_one_deadline_until_it_makes_room() {
    let limits = LogLimits {
        memory_bytes: 1000,
        spill_bytes: 1 << 20,
        on_full: OnFull::Block,
        totals: Arc::default(),
    };
    let (mut state, begin) = (State::new(&limits), Instant::now());
    let after = |millis| begin + Duration::from_millis(millis);
    let output = || Event::Output { stream: Stream::Stdout, bytes: vec![0; 400].into() };
    state.push(output(), begin);
    assert_eq!(state.wait_for_reader(&limits, begin), None, "there is room");
    state.push(output(), after(1));
    assert_eq!(state.wait_for_reader(&limits, after(1)), Some(after(6)));
    assert_eq!(
        state.wait_for_reader(&limits, after(5)),
        Some(after(6)),
        "the deadline does not move"
    );
    assert_eq!(state.wait_for_reader(&limits, after(6)), None, "the reader did not keep up");
    assert_eq!(state.wait_for_reader(&limits, after(60)), None, "the reader is still behind");
    state.confirmed = state.position_after(2);
    assert_eq!(state.wait_for_reader(&limits, after(61)), None, "the reader made room");
    state.push(output(), after(62));
    state.push(output(), after(63));
    assert_eq!(state.wait_for_reader(&limits, after(64)), Some(after(69)), "a new deadline");
    let first = [0, 1, 2, 62, 63, 64].map(|millis| state.first_since(after(millis)));
    assert_eq!(first, [1, 2, 3, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn the_producer_waits_only_for_a_reader_that_keeps_up() {
    let log = Arc::new(log(64 << 10, 1 << 30, OnFull::Block));
    while log.lock().wait_for_reader(&log.limits, Instant::now()).is_none() {
        produce(&log, vec![0; 4096]).await;
    }
    let reader = tokio::spawn({
        let log = Arc::clone(&log);
        async move { log.confirm(u64::MAX) }
    });
    log.wait_for_room().await;
    reader.await.unwrap();
    assert!(log.lock().reader_deadline.is_none(), "the reader made room");

    while log.lock().wait_for_reader(&log.limits, Instant::now()).is_none() {
        produce(&log, vec![0; 4096]).await;
    }
    log.wait_for_room().await;
    for _ in 0..100 {
        // The reader's deadline has passed: output goes to the file without another wait.
        assert!(log.lock().wait_for_reader(&log.limits, Instant::now()).is_none());
        produce(&log, vec![0; 4096]).await;
    }
    assert!(log.lock().spilled_bytes() > 0);
}

#[tokio::test]
async fn an_exit_is_kept_when_the_output_around_it_is_discarded() {
    let log = log(10_000, 0, OnFull::Discard);
    let mut cursor = Cursor::after(&log, 0);
    for _ in 0..50 {
        produce(&log, vec![1; 1000]).await;
    }
    log.append_exit(exit());
    for _ in 0..50 {
        produce(&log, vec![2; 1000]).await;
    }
    let page = cursor.read(&log, ALL).await;
    assert!(matches!(page.events[0].entry.event, Event::Exited(_)));
    assert_eq!((page.events[0].entry.seq, page.events[0].dropped), (51, 50_000));
    assert_eq!(page.dropped + text(&page).len() as u64, 100_000);
}

#[tokio::test]
async fn a_limited_read_returns_output_after_an_exit() {
    let log = log(1 << 20, 0, OnFull::Block);
    produce(&log, "a").await;
    log.append_exit(exit());
    produce(&log, "late").await;
    let one = Budget { bytes: 1, events: 99 };
    let page = Cursor::after(&log, 1).read(&log, one).await;
    assert_eq!(text(&page), b"late");
}

#[tokio::test]
async fn a_log_without_an_owner_never_fills_up_and_observers_see_its_end() {
    let log = log(10_000, 10_000, OnFull::Block);
    let mut observer = Cursor::after(&log, 0);
    while produce(&log, vec![0; 1000]).await {}
    log.forget_owner();
    log.wait_for_room().await;
    for _ in 0..100 {
        assert!(produce(&log, vec![0; 1000]).await);
        assert!(log.lock().memory_cost <= 12_000);
    }
    log.append_closed();
    let page = observer.read(&log, ALL).await;
    let total = log.lock().end_offset;
    assert_eq!(page.dropped + text(&page).len() as u64, total);
    assert!(matches!(page.events.last().unwrap().entry.event, Event::Closed));
}

#[tokio::test(start_paused = true)]
async fn recent_events_are_found_by_time() {
    let second = std::time::Duration::from_secs(1);
    let entry = ENTRY_OVERHEAD + 100;
    // Memory for four entries; the older ones are in the file, one block for each batch.
    let log = log(4 * entry, 1 << 20, OnFull::Block);
    assert_eq!(log.first_since(Instant::now()), 1, "the log is empty");
    let begin = Instant::now();
    for number in 0..12 {
        produce(&log, numbered(number, 100)).await;
        tokio::time::advance(second).await;
    }
    assert_eq!(log.first_since(begin), 1);
    assert_eq!(log.first_since(begin + 10 * second), 11, "memory is exact");
    assert_eq!(log.first_since(Instant::now()), 13, "the next number");
    let first_in_memory = log.lock().first_in_memory();
    assert!(first_in_memory > 2, "some are in the file");
    for seconds in 1..u32::try_from(first_in_memory).unwrap() - 1 {
        let found = log.first_since(begin + seconds * second);
        let exact = u64::from(seconds) + 1;
        assert!(found <= exact && found > 0, "{found} for {exact}");
        assert!(log.lock().spill.as_ref().unwrap().block_of(found).is_some());
    }
}

#[tokio::test]
async fn logs_keep_little_in_memory_beyond_the_total_bound() {
    start_spill_thread();
    let totals = Arc::new(LogTotals::bounded(300 << 10, 400 << 10));
    let new_log = || {
        let (memory_bytes, spill_bytes, on_full) = (1 << 20, 1 << 30, OnFull::Block);
        Log::new(LogLimits { memory_bytes, spill_bytes, on_full, totals: Arc::clone(&totals) })
    };
    let (one, other) = (new_log(), new_log());
    let chunk = || vec![b'x'; 64 << 10];
    for _ in 0..4 {
        assert!(produce(&one, chunk()).await);
    }
    assert_eq!(totals.spilled_bytes(), 0, "one log alone may use its megabyte");
    while produce(&other, chunk()).await {}
    assert!(totals.spilled_bytes() >= 400 << 10, "{totals:?}");
    assert!(totals.spilled_bytes() < 800 << 10, "{totals:?}");
    assert!(totals.memory_bytes() < 500 << 10, "{totals:?}");
    let output = totals.output_bytes();
    drop(other);
    assert_eq!(totals.spilled_bytes(), 0);
    one.confirm(u64::MAX);
    drop(one);
    assert_eq!((totals.memory_bytes(), totals.output_bytes()), (0, output));
}

#[tokio::test]
async fn discarded_output_is_counted_unless_the_client_received_it() {
    let totals = Arc::<LogTotals>::default();
    let limits = LogLimits {
        memory_bytes: 10_000,
        spill_bytes: 0,
        on_full: OnFull::Discard,
        totals: Arc::clone(&totals),
    };
    let log = Log::new(limits);
    for _ in 0..20 {
        assert!(produce(&log, vec![b'x'; 1000]).await);
        log.confirm(u64::MAX);
    }
    assert_eq!(totals.discarded_bytes(), 0);
    for _ in 0..20 {
        assert!(produce(&log, vec![b'x'; 1000]).await);
    }
    assert!((10_000..=12_000).contains(&totals.discarded_bytes()), "{totals:?}");
}

#[tokio::test]
async fn a_log_continues_when_others_use_up_the_memory_and_when_they_free_it() {
    let totals = Arc::new(LogTotals::bounded(200 << 10, 0));
    let new_log = || {
        let (memory_bytes, spill_bytes, on_full) = (1 << 20, 1 << 30, OnFull::Block);
        Log::new(LogLimits { memory_bytes, spill_bytes, on_full, totals: Arc::clone(&totals) })
    };
    let (one, other) = (new_log(), new_log());
    let chunk = || vec![b'x'; 32 << 10];
    for _ in 0..4 {
        assert!(produce(&one, chunk()).await);
    }
    // The reader of `one` has received everything, so no confirmation will follow.
    one.confirm(u64::MAX);
    while produce(&other, chunk()).await {}
    one.wait_for_room().await;
    assert!(produce(&one, chunk()).await);
    // A log with a disconnected reader waits until another log is dropped.
    while produce(&other, chunk()).await {}
    let waiting = other.wait_for_room();
    let mut waiting = std::pin::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(20), waiting.as_mut()).await.is_err());
    drop(one);
    waiting.await;
    assert!(produce(&other, chunk()).await);
}
