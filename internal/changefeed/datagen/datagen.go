// Package datagen is a source that generates its changes: deterministically, so that any node can resume at any position.
//
//	datagen://?tables=100&rate=1000&seed=1&rows=50
//
// Transaction p, counted from 1, changes one row of table (p-1) mod tables. In each table the rows 0 to rows-1 are inserted one after the other,
// then updated, then deleted, and again. With a rate the head of the log follows the clock; without one it has no end.
package datagen

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

const (
	maxTables = 10_000_000
	maxRate   = 100_000_000
	// schemaName of every table.
	schemaName = "datagen"
	// tick is how often a reader at the head of the log checks for new transactions.
	tick = 10 * time.Millisecond
	// approxBytes is about what one change takes.
	approxBytes = 256
)

// began is the time of transaction 1 of sources with a rate, the same on every node.
var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Source implements stream.Source.
type Source struct {
	tables, rows, rate, seed uint64
	schema                   *stream.Schema
	names                    []stream.Table
}

// Parse reads the parameters of a datagen URL.
func Parse(u *url.URL) (*Source, error) {
	s := &Source{tables: 1, rows: 100, rate: 100, seed: 1}
	text := u.RawQuery
	if strings.ContainsRune(u.Host, '=') && text == "" {
		text = u.Host
	} else if u.Host != "" {
		return nil, fmt.Errorf("datagen: the URL has a host, %q: use only parameters, as in datagen://?tables=100&rate=1000", u.Host)
	}
	if u.Path != "" || u.Fragment != "" || u.User != nil || u.Opaque != "" {
		return nil, fmt.Errorf("datagen: %q: use only parameters, as in datagen://?tables=100&rate=1000", u.Redacted())
	}
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, fmt.Errorf("datagen: %w", err)
	}
	for key, values := range query {
		n, err := strconv.ParseUint(values[len(values)-1], 10, 63)
		if err != nil {
			return nil, fmt.Errorf("datagen: %s=%q is not a whole number", key, values[len(values)-1])
		}
		switch key {
		case "tables":
			s.tables = n
		case "rows":
			s.rows = n
		case "rate":
			s.rate = n
		case "seed":
			s.seed = n
		default:
			return nil, fmt.Errorf("datagen: unknown parameter %q: use tables, rows, rate and seed", key)
		}
	}
	if s.tables < 1 || s.tables > maxTables || s.rows < 1 || s.rate > maxRate {
		return nil, fmt.Errorf("datagen: use 1 to %d tables, at least 1 row and a rate of at most %d", maxTables, maxRate)
	}
	s.schema = &stream.Schema{
		Columns: []stream.Column{{Name: "id", Type: "bigint", Unsigned: true}, {Name: "version", Type: "bigint", Unsigned: true}, {Name: "value", Type: "varchar"}},
		Key:     []int{0},
	}
	width := len(strconv.FormatUint(s.tables-1, 10))
	s.names = make([]stream.Table, s.tables)
	for i := range s.names {
		s.names[i] = stream.Table{Schema: schemaName, Name: fmt.Sprintf("t%0*d", width, i)}
	}
	return s, nil
}

// Check implements stream.Source.
func (s *Source) Check(context.Context) error { return nil }

// Tables implements stream.Source.
func (s *Source) Tables(context.Context) ([]stream.Table, stream.Position, error) {
	return s.names, s.head(time.Now()), nil
}

// Head implements stream.Source.
func (s *Source) Head(context.Context) (stream.Position, error) { return s.head(time.Now()), nil }

// Static reports that there is no DDL.
func (s *Source) Static() bool { return true }

// Close implements stream.Source.
func (s *Source) Close() error { return nil }

// head is the newest transaction at a time.
func (s *Source) head(now time.Time) stream.Position {
	if s.rate == 0 {
		return 0
	}
	return stream.Position(now.Sub(began).Seconds() * float64(s.rate))
}

// at is when a transaction was committed.
func (s *Source) at(p stream.Position) time.Time {
	if s.rate == 0 {
		return time.Now()
	}
	return began.Add(time.Duration(float64(p) / float64(s.rate) * float64(time.Second)))
}

// Read implements stream.Source.
func (s *Source) Read(ctx context.Context, after stream.Position, visit func(*stream.Transaction) error) error {
	p := after
	for {
		end := stream.Position(math.MaxUint64)
		if s.rate > 0 {
			end = s.head(time.Now())
		}
		for ; p < end; p++ {
			if p%256 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			if err := visit(s.Transaction(p + 1)); err != nil {
				return err
			}
		}
		timer := time.NewTimer(max(tick, min(time.Until(s.at(p+1)), time.Second)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// Transaction is the transaction at a position.
func (s *Source) Transaction(p stream.Position) *stream.Transaction {
	n := uint64(p) - 1
	turn := n / s.tables
	id, version := turn%s.rows, turn/s.rows
	before, after := s.row(id, version-1, n-s.rows*s.tables), s.row(id, version, n)
	change := stream.Change{Kind: stream.Insert, After: after}
	switch version % 3 {
	case 1:
		change = stream.Change{Kind: stream.Update, Before: before, After: after}
	case 2:
		change = stream.Change{Kind: stream.Delete, Before: before}
	}
	rows := &stream.Rows{
		Position: p, At: s.at(p), Table: s.names[n%s.tables], Schema: s.schema, Changes: []stream.Change{change}, Bytes: approxBytes,
	}
	return &stream.Transaction{Position: p, At: rows.At, Rows: []*stream.Rows{rows}}
}

// row is a row as transaction n left it.
func (s *Source) row(id, version, n uint64) []any {
	x := n ^ s.seed*0x9e3779b97f4a7c15
	x ^= x >> 31
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 29
	return []any{id, version, strconv.FormatUint(x, 16)}
}
