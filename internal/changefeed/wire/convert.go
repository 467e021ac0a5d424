package wire

import (
	"strconv"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Key is the changefeed that a Feed names.
func (f *Feed) Key() dispatch.FeedKey {
	return dispatch.FeedKey{Namespace: f.GetNamespace(), Name: f.GetName(), UID: f.GetUid()}
}

// NewFeed names a changefeed in a placement.
func NewFeed(key dispatch.FeedKey, placement int64) *Feed {
	return &Feed{Namespace: key.Namespace, Name: key.Name, Uid: key.UID, Epoch: placement}
}

// NewEpoch encodes an owner's epoch.
func NewEpoch(e stream.Epoch) *Epoch { return &Epoch{Placement: e.Placement, Counter: e.Counter} }

// ParseEpoch decodes one.
func ParseEpoch(e *Epoch) stream.Epoch {
	return stream.Epoch{Placement: e.GetPlacement(), Counter: e.GetCounter()}
}

// Layout is the layout of the sink's own tables that nodes of this version write. Nodes of earlier versions tell none, and cannot write it.
const Layout = 2

// TableName encodes a table: its name, and since when it has it. The names of schemas and tables may contain dots, but no NUL. Nodes of
// earlier versions know names only.
func TableName(t stream.Identity) string {
	if t.Since == stream.AnySince {
		return Name(t.Table)
	}
	return Name(t.Table) + "\x00" + strconv.FormatUint(uint64(t.Since), 10)
}

// ParseTable decodes a table, and reports whether it is valid. Of a name alone, it is any table that has it.
func ParseTable(text string) (stream.Identity, bool) {
	schema, rest, ok := strings.Cut(text, "\x00")
	name, since, exact := strings.Cut(rest, "\x00")
	t := stream.Table{Schema: schema, Name: name}
	ok = ok && schema != "" && name != ""
	if !exact {
		return t.Since(stream.AnySince), ok
	}
	at, err := strconv.ParseUint(since, 10, 64)
	return t.Since(stream.Position(at)), ok && err == nil
}

// TableNames encodes tables.
func TableNames(list []stream.Identity) []string {
	var names []string
	for _, t := range list {
		names = append(names, TableName(t))
	}
	return names
}

// ParseTables decodes them, and reports whether all are valid.
func ParseTables(list []string) ([]stream.Identity, bool) {
	var tables []stream.Identity
	for _, text := range list {
		t, ok := ParseTable(text)
		if !ok {
			return nil, false
		}
		tables = append(tables, t)
	}
	return tables, true
}

// Name encodes the name of a table.
func Name(t stream.Table) string { return t.Schema + "\x00" + t.Name }

// Names encodes the names of tables.
func Names(list []stream.Table) []string {
	var names []string
	for _, t := range list {
		names = append(names, Name(t))
	}
	return names
}

// ParseNames decodes them, and reports whether all are valid.
func ParseNames(list []string) ([]stream.Table, bool) {
	tables, ok := ParseTables(list)
	var names []stream.Table
	for _, t := range tables {
		names = append(names, t.Table)
	}
	return names, ok
}
