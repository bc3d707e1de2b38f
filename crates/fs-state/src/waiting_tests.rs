use super::*;

const INO: Ino = Ino(5);
const OTHER: Ino = Ino(6);

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

fn lock(mode: LockMode, start: u64, end: u64) -> LockRequest {
    LockRequest { owner: 1, kind: LockKind::Posix, start, end, mode, pid: 7 }
}

fn write() -> LockRequest {
    lock(LockMode::Write, 0, u64::MAX)
}

fn ticket(connection: u64) -> Ticket {
    Ticket { connection, request: connection + 100 }
}

/// Connections whose turn it is, or what they were refused with.
fn heard(locks: &mut Locks) -> Vec<(u64, Option<Errno>)> {
    locks.take_answered().into_iter().map(|a| (a.ticket.connection, a.refused)).collect()
}

/// Somebody's turn comes and he takes the lock.
fn takes(locks: &mut Locks, who: u8, ino: Ino) {
    assert_eq!(heard(locks), [(u64::from(who), None)]);
    assert_eq!(locks.set(ino, session(who), &write()), Set::Done);
}

#[test]
fn turns_come_in_the_order_of_arrival_and_nobody_slips_in() {
    let mut locks = Locks::default();
    assert_eq!(locks.set(INO, session(9), &write()), Set::Done);
    for who in [3, 1, 2] {
        locks.wait(INO, session(who), &write(), ticket(who.into()));
    }
    assert_eq!(heard(&mut locks), []);
    let mut holder = 9;
    for who in [3, 1, 2] {
        assert_eq!(locks.set(INO, session(holder), &lock(LockMode::Unlock, 0, u64::MAX)), Set::Done);
        assert_eq!(locks.set(INO, session(8), &write()), Set::InTheWay, "it is somebody's turn");
        assert!(locks.conflict(INO, session(8), &write()).is_some());
        takes(&mut locks, who, INO);
        holder = who;
    }
    assert!(locks.waiting.is_empty() && locks.places.is_empty());
}

#[test]
fn who_leaves_or_does_not_come_is_passed_over() {
    let mut locks = Locks::default();
    assert_eq!(locks.set(INO, session(9), &write()), Set::Done);
    for who in 1..=5 {
        locks.wait(INO, session(who), &write(), ticket(who.into()));
    }
    locks.withdraw(1);
    locks.release_session(session(2));
    locks.release_session(session(9));
    assert_eq!(heard(&mut locks), [(3, None)]);
    locks.withdraw(3);
    assert_eq!(heard(&mut locks), [(4, None)]);
    locks.lapse(TURN_MAX - Duration::from_millis(1));
    assert_eq!(heard(&mut locks), []);
    locks.lapse(TURN_MAX);
    takes(&mut locks, 5, INO);
    assert!(locks.waiting.is_empty() && locks.places.is_empty());
    assert_eq!(locks.set(INO, session(4), &write()), Set::InTheWay, "who comes too late has no turn");
}

#[test]
fn circles_of_processes_are_refused_and_nothing_else() {
    let mut locks = Locks::default();
    assert_eq!(locks.set(INO, session(1), &write()), Set::Done);
    assert_eq!(locks.set(OTHER, session(2), &write()), Set::Done);
    locks.wait(OTHER, session(1), &write(), ticket(1));
    locks.wait(INO, session(3), &write(), ticket(3));
    assert_eq!(heard(&mut locks), []);
    locks.wait(INO, session(2), &LockRequest { pid: PID_OPEN_FILE, ..write() }, ticket(20));
    locks.wait(INO, session(2), &LockRequest { kind: LockKind::Flock, ..write() }, ticket(21));
    assert_eq!(heard(&mut locks), [(21, None)], "those of open files wait");
    locks.wait(INO, session(2), &write(), ticket(2));
    assert_eq!(heard(&mut locks), [(2, Some(Errno::EDEADLK))]);
    locks.withdraw(1);
    locks.wait(INO, session(2), &write(), ticket(2));
    assert_eq!(heard(&mut locks), [], "who was waited for waits no more");
}

#[test]
fn two_readers_that_both_want_to_write_are_a_circle() {
    let mut locks = Locks::default();
    for who in [1, 2] {
        assert_eq!(locks.set(INO, session(who), &lock(LockMode::Read, 0, 9)), Set::Done);
    }
    locks.wait(INO, session(1), &write(), ticket(1));
    locks.wait(INO, session(2), &write(), ticket(2));
    assert_eq!(heard(&mut locks), [(2, Some(Errno::EDEADLK))]);
    locks.release_session(session(2));
    takes(&mut locks, 1, INO);
}

#[test]
fn a_connection_waits_for_one_lock() {
    let mut locks = Locks::default();
    assert_eq!(locks.set(INO, session(9), &write()), Set::Done);
    locks.wait(INO, session(1), &write(), ticket(1));
    locks.wait(OTHER, session(1), &write(), ticket(1));
    assert_eq!(heard(&mut locks), [(1, Some(Errno::EBUSY))]);
}

const BYTES: usize = 8;
const OWNERS: usize = 5;

/// What a slow one that knows bytes only thinks.
#[derive(Default)]
struct Oracle {
    /// By object, owner and byte.
    held: [[[Option<LockMode>; BYTES]; OWNERS]; 2],
    /// Connection, object, owner, lock; those whose turn it is say so.
    queue: Vec<(u64, usize, usize, LockRequest, bool)>,
}

fn meets(held: Option<LockMode>, mode: LockMode) -> bool {
    held.is_some_and(|held| held == LockMode::Write || mode == LockMode::Write)
}

impl Oracle {
    fn stands_in_the_way(&self, other: usize, object: usize, lock: &LockRequest) -> bool {
        let holds = |byte: u64| meets(self.held[object][other][byte as usize], lock.mode);
        let has_turn = |byte: u64| {
            self.queue.iter().any(|(_, at, owner, turn, given)| {
                *given
                    && (*at, *owner) == (object, other)
                    && (turn.start..=turn.end).contains(&byte)
                    && meets(Some(turn.mode), lock.mode)
            })
        };
        (lock.start..=lock.end).any(|byte| holds(byte) || has_turn(byte))
    }

    fn in_the_way(&self, owner: usize, object: usize, lock: &LockRequest) -> Vec<usize> {
        (0..OWNERS).filter(|other| *other != owner && self.stands_in_the_way(*other, object, lock)).collect()
    }

    /// Everybody whom an owner waits for, over any number of steps.
    fn closes_a_circle(&self, owner: usize, object: usize, lock: &LockRequest) -> bool {
        let mut reached = [false; OWNERS];
        self.in_the_way(owner, object, lock).into_iter().for_each(|other| reached[other] = true);
        for _ in 0..OWNERS {
            for (_, at, waiter, wants, given) in &self.queue {
                if reached[*waiter] && !given {
                    self.in_the_way(*waiter, *at, wants).into_iter().for_each(|other| reached[other] = true);
                }
            }
        }
        reached[owner]
    }

    /// One turn after the other, always to the first who can have one.
    fn turns(&mut self) -> Vec<u64> {
        let mut given = Vec::new();
        while let Some(at) = self.queue.iter().position(|(_, object, owner, lock, turn)| {
            !turn && self.in_the_way(*owner, *object, lock).is_empty()
        }) {
            self.queue[at].4 = true;
            given.push(self.queue[at].0);
        }
        given
    }

    fn put(&mut self, owner: usize, object: usize, lock: &LockRequest) {
        let mode = (lock.mode != LockMode::Unlock).then_some(lock.mode);
        self.held[object][owner][lock.start as usize..=lock.end as usize].fill(mode);
    }
}

/// Random requests of five owners for two objects of 8 bytes.
#[test]
fn turns_and_circles_match_a_bytewise_oracle() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |bound: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % bound as u64) as usize
    };
    let (mut locks, mut oracle) = (Locks::default(), Oracle::default());
    let (mut turns, mut circles) = (0, 0);
    for step in 0..40_000_u64 {
        let (owner, object) = (next(OWNERS), next(2));
        let who = session(owner as u8);
        let ino = [INO, OTHER][object];
        let (x, y) = (next(BYTES) as u64, next(BYTES) as u64);
        let mode = [LockMode::Read, LockMode::Write][next(2)];
        let one = lock(mode, x.min(y), x.max(y));
        match next(6) {
            0 | 1 => {
                oracle.put(owner, object, &LockRequest { mode: LockMode::Unlock, ..one.clone() });
                let unlock = LockRequest { mode: LockMode::Unlock, ..one };
                assert_eq!(locks.set(ino, who, &unlock), Set::Done);
            }
            2 => {
                let free = oracle.in_the_way(owner, object, &one).is_empty();
                assert_eq!(locks.set(ino, who, &one) == Set::Done, free, "step {step}");
                if free {
                    let same = |w: &(u64, usize, usize, LockRequest, bool)| {
                        w.4 && (w.1, w.2) == (object, owner) && w.3 == one
                    };
                    oracle.queue.retain(|w| !same(w));
                    oracle.put(owner, object, &one);
                }
            }
            3 if oracle.queue.len() < 12 => {
                locks.wait(ino, who, &one, ticket(step));
                if oracle.closes_a_circle(owner, object, &one) {
                    circles += 1;
                    assert_eq!(heard(&mut locks), [(step, Some(Errno::EDEADLK))], "step {step}");
                } else {
                    oracle.queue.push((step, object, owner, one, false));
                }
            }
            4 if !oracle.queue.is_empty() => {
                let (connection, ..) = oracle.queue.remove(next(oracle.queue.len()));
                locks.withdraw(connection);
            }
            // One whose turn it is takes its lock.
            _ => {
                let Some(at) = oracle.queue.iter().position(|w| w.4) else { continue };
                let (_, object, owner, one, _) = oracle.queue.remove(at);
                assert_eq!(locks.set([INO, OTHER][object], session(owner as u8), &one), Set::Done);
                oracle.queue.retain(|w| !(w.4 && (w.1, w.2) == (object, owner) && w.3 == one));
                oracle.put(owner, object, &one);
            }
        }
        let given = oracle.turns();
        turns += given.len();
        assert_eq!(heard(&mut locks), given.iter().map(|c| (*c, None)).collect::<Vec<_>>(), "step {step}");
        assert_eq!(locks.places.len(), oracle.queue.len(), "step {step}");
    }
    assert!(turns > 1000 && circles > 100, "{turns} turns, {circles} circles");
}
