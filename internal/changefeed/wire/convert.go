package wire

import (
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

// TableName encodes the name of a table: the names of schemas and tables may contain dots, but no NUL.
func TableName(t stream.Table) string { return t.Schema + "\x00" + t.Name }

// ParseTable decodes one, and reports whether it is valid.
func ParseTable(text string) (stream.Table, bool) {
	schema, name, ok := strings.Cut(text, "\x00")
	return stream.Table{Schema: schema, Name: name}, ok && schema != "" && name != ""
}

// TableNames encodes the names of tables.
func TableNames(list []stream.Table) []string {
	var names []string
	for _, t := range list {
		names = append(names, TableName(t))
	}
	return names
}

// ParseTables decodes them, and reports whether all are valid.
func ParseTables(list []string) ([]stream.Table, bool) {
	var tables []stream.Table
	for _, text := range list {
		t, ok := ParseTable(text)
		if !ok {
			return nil, false
		}
		tables = append(tables, t)
	}
	return tables, true
}
