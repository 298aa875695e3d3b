-- Times are UTC in ISO 8601 with seconds, amounts are euro cents.

CREATE TABLE IF NOT EXISTS berths (
    id          INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    length_cm   INTEGER NOT NULL CHECK (length_cm BETWEEN 300 AND 2500),
    pontoon     TEXT    NOT NULL
);

CREATE TABLE IF NOT EXISTS users (
    id          INTEGER PRIMARY KEY,
    email       TEXT    NOT NULL UNIQUE,
    role        TEXT    NOT NULL DEFAULT 'guest' CHECK (role IN ('guest', 'staff'))
);

CREATE TABLE IF NOT EXISTS bookings (
    id            INTEGER PRIMARY KEY,
    number        TEXT    NOT NULL UNIQUE,
    berth_id      INTEGER NOT NULL REFERENCES berths (id),
    guest_id      INTEGER NOT NULL REFERENCES users (id),
    boat          TEXT    NOT NULL,
    boat_cm       INTEGER NOT NULL CHECK (boat_cm > 0),
    arrival       TEXT    NOT NULL,
    departure     TEXT    NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN ('held', 'paid', 'cancelled', 'expired')),
    total_cents   INTEGER NOT NULL CHECK (total_cents >= 0),
    deposit_cents INTEGER NOT NULL CHECK (deposit_cents >= 0),
    code          TEXT    NOT NULL,
    hold_until    INTEGER NOT NULL,              -- seconds since the epoch
    created_at    TEXT    NOT NULL,
    CHECK (departure >= arrival)
);

CREATE INDEX IF NOT EXISTS bookings_by_berth ON bookings (berth_id, arrival, departure);
CREATE INDEX IF NOT EXISTS bookings_by_guest ON bookings (guest_id, created_at);

-- One row per charge and per refund; refunds are negative.
CREATE TABLE IF NOT EXISTS payments (
    id           INTEGER PRIMARY KEY,
    booking_id   INTEGER NOT NULL REFERENCES bookings (id) ON DELETE CASCADE,
    charge_id    TEXT    NOT NULL,
    amount_cents INTEGER NOT NULL,
    created_at   TEXT    NOT NULL
);

CREATE INDEX IF NOT EXISTS payments_by_booking ON payments (booking_id);

-- Events of the payment provider that were applied.
CREATE TABLE IF NOT EXISTS webhook_events (
    id          INTEGER PRIMARY KEY,
    event_id    TEXT    NOT NULL,
    received_at TEXT    NOT NULL
);

CREATE INDEX IF NOT EXISTS webhook_events_by_event ON webhook_events (event_id);

CREATE TABLE IF NOT EXISTS attachments (
    id          INTEGER PRIMARY KEY,
    booking_id  INTEGER NOT NULL REFERENCES bookings (id) ON DELETE CASCADE,
    file_name   TEXT    NOT NULL,
    added_at    TEXT    NOT NULL
);

CREATE VIEW IF NOT EXISTS occupied AS
    SELECT berth_id, arrival, departure FROM bookings WHERE state IN ('held', 'paid');

CREATE VIEW IF NOT EXISTS balance AS
    SELECT b.number, b.total_cents - COALESCE(SUM(p.amount_cents), 0) AS due_cents
    FROM bookings AS b LEFT JOIN payments AS p ON p.booking_id = b.id
    WHERE b.state = 'paid'
    GROUP BY b.id;
