package mariadb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Waits between attempts to connect again.
const (
	firstWait = 50 * time.Millisecond
	lastWait  = 5 * time.Second
)

// cursor is how far a read has come. It moves after a transaction was visited, so that no transaction is skipped or visited twice
// when a connection is lost.
type cursor struct {
	position stream.Position
	// last is the transaction at the position, once one was visited. A server with another history does not have it.
	last *gtid
	// large is the next transaction, if that has to be read in parts.
	large *largeTransaction
}

// Read visits every transaction after a position.
func (s *Source) Read(ctx context.Context, after stream.Position, visit func(*stream.Transaction) error) error {
	return s.ReadOf(ctx, after, func(stream.Table) bool { return true }, visit)
}

// ReadOf implements stream.Selective.
func (s *Source) ReadOf(ctx context.Context, after stream.Position, wants func(stream.Table) bool, visit func(*stream.Transaction) error) error {
	id := s.takeID()
	defer s.giveID(id)
	at := &cursor{position: after}
	waits := backoff.New(backoff.Policy{First: firstWait, Longest: lastWait})
	for {
		from := at.position
		err := s.readOnce(ctx, id, at, wants, visit)
		var final *finalError
		var large *largeTransaction
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &large):
			at.large = large
			continue
		case errors.As(err, &final):
			return final.err
		case errors.Is(err, stream.ErrPurged), errors.Is(err, stream.ErrUnusable):
			return err
		}
		if at.position != from {
			waits.Reset()
		}
		wait := waits.Next()
		s.log.Warn("lost the connection to the source; reconnecting", "position", at.position, "wait", wait, "error", err)
		if backoff.Sleep(ctx, wait) != nil {
			return ctx.Err()
		}
	}
}

// finalError ends a read: reconnecting would lead to the same error.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// readOnce reads on one connection until it is lost, and returns why.
func (s *Source) readOnce(ctx context.Context, id uint32, at *cursor, wants func(stream.Table) bool, visit func(*stream.Transaction) error) error {
	if err := s.checkRetained(ctx, at.position); err != nil {
		return err
	}
	a, err := s.newAssembler(ctx, wants)
	if err != nil {
		return err
	}
	start, exact, err := s.startAt(ctx, at)
	if err != nil {
		return err
	}
	a.newest = start
	err = s.dump(ctx, id, start, func(e *replication.BinlogEvent) error { return a.event(ctx, e, at, visit) })
	if code, ok := errorCode(err); !ok || code != codeReadingBinlog {
		return err
	}
	// The server does not have the transaction that the dump was to start after, or not any more.
	if purged := s.checkRetained(ctx, at.position); purged != nil {
		return purged
	}
	if exact {
		return s.unusable("the server does not have GTID %s, which was read before: this is another server, or its log was reset; "+
			"use the server that was read before, or start again from a new copy (%v)", at.last, err)
	}
	if start, err = s.floor(ctx, at.position); err != nil {
		return err
	}
	a.newest = start
	err = s.dump(ctx, id, start, func(e *replication.BinlogEvent) error { return a.event(ctx, e, at, visit) })
	if code, ok := errorCode(err); ok && code == codeReadingBinlog {
		return s.unusable("the server cannot send its log after GTID %s (%v)", start, err)
	}
	return err
}

// startAt is the transaction after which a dump starts. A position does not contain the server that wrote the transaction: with one
// writer that is known, with several the dump starts at the boundary of files before it and the assembler skips what was visited.
// exact is whether the transaction was visited.
func (s *Source) startAt(ctx context.Context, at *cursor) (start gtid, exact bool, err error) {
	if at.last != nil {
		return *at.last, true, nil
	}
	state, err := s.logState(ctx)
	if err != nil || at.position == 0 {
		return gtid{domain: state.head.domain}, false, err
	}
	if state.writers == 1 || uint64(at.position) == state.head.seq {
		return gtid{state.head.domain, state.head.server, uint64(at.position)}, false, nil
	}
	start, err = s.floor(ctx, at.position)
	return start, false, err
}

// dump reads the log after a transaction and calls handle for every event until the connection is lost, ctx is cancelled, or handle
// returns an error.
func (s *Source) dump(ctx context.Context, id uint32, after gtid, handle func(*replication.BinlogEvent) error) error {
	l, err := s.openLog(ctx, id, after)
	if err != nil {
		return s.wrapDump(err)
	}
	defer l.close()
	for {
		e, err := l.next()
		if err != nil {
			return s.wrap("read the binary log", err)
		}
		if err := handle(e); err != nil {
			return err
		}
	}
}

// replicationCode is the server's code of an error of the replication library.
func replicationCode(err error) (uint16, bool) {
	var e *mysql.MyError
	if errors.As(err, &e) {
		return e.Code, true
	}
	return 0, false
}

// tryDump registers as a replica once, to check that the user may.
func (s *Source) tryDump(ctx context.Context) error {
	state, err := s.logState(ctx)
	if err != nil {
		return err
	}
	id := s.takeID()
	defer s.giveID(id)
	l, err := s.openLog(ctx, id, state.head)
	if err != nil {
		return s.wrapDump(err)
	}
	l.close()
	return nil
}

// HasTransaction returns ErrUnusable if the log does not have a transaction, given by its GTID: the server has another history than the
// one that was read before.
func (s *Source) HasTransaction(ctx context.Context, text string) error {
	after, err := parseGTID(text)
	if err != nil {
		return s.unusable("%v", err)
	}
	if err := s.checkRetained(ctx, stream.Position(after.seq)); err != nil {
		return err
	}
	id := s.takeID()
	defer s.giveID(id)
	l, err := s.openLog(ctx, id, after)
	if err != nil {
		return s.wrapDump(err)
	}
	defer l.close()
	for {
		e, err := l.next()
		if code, ok := errorCode(err); ok && code == codeReadingBinlog {
			if purged := s.checkRetained(ctx, stream.Position(after.seq)); purged != nil {
				return purged
			}
			return s.unusable("the server does not have GTID %s, which was read before: this is another server, or its log was reset; "+
				"use the server that was read before, or start again from a new copy (%v)", after, err)
		}
		if err != nil {
			return s.wrap("read the binary log", err)
		}
		switch e.Header.EventType {
		case replication.MARIADB_GTID_EVENT, replication.HEARTBEAT_EVENT:
			return nil // what comes after the transaction, if anything
		}
	}
}

// wrapDump is wrap for a connection that reads the log. Queries have succeeded before, so an access error is about the privilege and
// not about the password.
func (s *Source) wrapDump(err error) error {
	if code, ok := replicationCode(err); ok && code == codeAccessDenied {
		return s.unusable("user %q lacks a privilege to register as a replica; %s (%v)", s.options.User, s.grant(), err)
	}
	return s.wrap("register as a replica", err)
}

// errClosed: no socket is opened for a reader that is being closed.
var errClosed = fmt.Errorf("the reader is closed: %w", net.ErrClosed)
