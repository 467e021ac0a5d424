package mariadb

import (
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// What the server writes into its log itself has ? for what utf8mb3 does not have.
func TestADefinitionThatTheServerCouldNotLogIsNotReplicated(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d CHARACTER SET utf8mb4")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.Exec("USE d", "SET NAMES utf8mb4",
		"CREATE TABLE bytes (b VARBINARY(3) DEFAULT x'FF00FE')", "CREATE TABLE members (e ENUM('😀', 'b'))", "CREATE TABLE whole (v VARCHAR(9) DEFAULT 'ü', w INT COMMENT 'ö')",
		"CREATE TABLE remarks (active INT COMMENT 'Is the user active?', comment VARCHAR(9), KEY (active) COMMENT 'why?') COMMENT 'who?'",
		"CREATE TABLE says (comment VARCHAR(9) DEFAULT 'COMMENT ?')", "CREATE TABLE says2 AS SELECT * FROM says", "CREATE TABLE remarks2 (PRIMARY KEY (n) COMMENT 'how?') COMMENT 'what?' AS SELECT *, 1 AS n FROM remarks",
		"CREATE TABLE bytes2 AS SELECT * FROM bytes", "CREATE TABLE members2 AS SELECT * FROM members", "CREATE TABLE whole2 AS SELECT * FROM whole",
		"CREATE TABLE asked (v VARCHAR(9) DEFAULT 'why?')",
		"CREATE TEMPORARY TABLE other (v VARCHAR(9) DEFAULT '😀'); CREATE TABLE alike LIKE other",
		"CREATE TEMPORARY TABLE remark (v INT COMMENT 'who?') COMMENT='what?'; CREATE TABLE remark2 LIKE remark")
	unknown := map[string]bool{}
	for _, tx := range collect(t, s, head) {
		if tx.DDL != nil && tx.DDL.Differs != "" {
			unknown[tx.DDL.Tables[0].Name] = strings.Contains(tx.DDL.Differs, "? may stand for characters or bytes that its log cannot hold")
		}
	}
	for _, name := range []string{"bytes2", "members2", "alike", "says2"} {
		if !unknown[name] {
			t.Errorf("table %s is replicated though its definition is not in the log", name)
		}
		delete(unknown, name)
	}
	if len(unknown) > 0 {
		t.Errorf("refused are %v, too", unknown)
	}
}
