package maintainer

import (
	"fmt"
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// checkRows refuses rows, ALTER and TRUNCATE of an unknown table inside the filter, which no dispatcher reads. Known are all tables that the source had when they
// were listed, and all that DDL in the log has created since. The caller holds the lock.
func (m *Maintainer) checkRows(f stream.Filter, t *stream.Transaction) error {
	if t.Position <= m.missingUntil {
		return nil // whether a table is known may depend on DDL up to there
	}
	unknown := func(name stream.Table) bool { return f.Allows(name) && !m.known(name) && !m.missing[name] }
	for _, rows := range t.Rows {
		if unknown(rows.Table) {
			return refuseRows(t.Position, rows.Table)
		}
	}
	if t.DDL != nil && t.DDL.Alone() && unknown(t.DDL.Tables[0]) {
		return refuseRows(t.Position, t.DDL.Tables[0])
	}
	if i := slices.IndexFunc(t.Skipped, unknown); i >= 0 {
		return refuseRows(t.Position, t.Skipped[i])
	}
	return nil
}

func refuseRows(at stream.Position, name stream.Table) error {
	return &refusedError{fmt.Errorf("position %d: the log has changes of table %s, which is not known: it was created or renamed with sql_log_bin=0, a temporary table of that name was renamed, "+
		"or the user of the source has no privilege on it; exclude the table by the filter, or start again with a new changefeed, from a copy taken after that: %w", at, name, stream.ErrUnusable)}
}
