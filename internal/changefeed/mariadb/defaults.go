package mariadb

import (
	"fmt"
	"strings"
)

// A column that is added gives its default to all rows that there are. The log has the statement and not the values, so that a default
// that depends on more than the row and the time of the statement would leave other values at the sink.

// sameEverywhere are the functions, and the types and words before a bracket, that depend on nothing else.
var sameEverywhere = wordSet(`
	NOW CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP CURDATE CURRENT_DATE CURTIME CURRENT_TIME UTC_TIMESTAMP UTC_DATE UTC_TIME UNIX_TIMESTAMP FROM_UNIXTIME
	DATE TIME TIMESTAMP YEAR MONTH DAY DAYOFMONTH DAYOFYEAR HOUR MINUTE SECOND MICROSECOND QUARTER LAST_DAY MAKEDATE MAKETIME
	DATE_ADD DATE_SUB ADDDATE SUBDATE ADDTIME SUBTIME DATEDIFF TIMEDIFF TIMESTAMPADD TIMESTAMPDIFF TO_DAYS FROM_DAYS TO_SECONDS SEC_TO_TIME TIME_TO_SEC STR_TO_DATE DATE_FORMAT TIME_FORMAT EXTRACT
	IF IFNULL NULLIF COALESCE ISNULL NVL NVL2 GREATEST LEAST INTERVAL IN AND OR NOT XOR CASE WHEN THEN ELSE BETWEEN LIKE REGEXP BINARY
	CONCAT CONCAT_WS LOWER UPPER LCASE UCASE LEFT RIGHT MID SUBSTR SUBSTRING SUBSTRING_INDEX TRIM LTRIM RTRIM LENGTH OCTET_LENGTH CHAR_LENGTH CHARACTER_LENGTH BIT_LENGTH
	REPLACE REPEAT SPACE LPAD RPAD REVERSE INSERT INSTR LOCATE POSITION ASCII ORD CHAR CHR HEX UNHEX ELT FIELD FIND_IN_SET FORMAT QUOTE TO_BASE64 FROM_BASE64 STRCMP
	ABS CEIL CEILING FLOOR ROUND TRUNCATE MOD SIGN CONV OCT BIN BIT_COUNT
	MD5 SHA SHA1 SHA2 CRC32 INET_ATON INET_NTOA INET6_ATON INET6_NTOA
	JSON_OBJECT JSON_ARRAY JSON_QUOTE JSON_UNQUOTE JSON_EXTRACT JSON_VALUE JSON_QUERY JSON_SET JSON_INSERT JSON_REPLACE JSON_REMOVE JSON_MERGE JSON_VALID JSON_COMPACT
	POINT LINESTRING POLYGON ST_GEOMFROMTEXT ST_GEOMFROMWKB
	CAST CONVERT DECIMAL NUMERIC VARCHAR NCHAR SIGNED UNSIGNED INTEGER INT DATETIME DOUBLE FLOAT
`)

func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(text) {
		set[word] = true
	}
	return set
}

// unsureDefault reads a clause that adds something to a table, up to the comma after it. It returns why a default in it may give rows other
// values at a sink; empty if none does.
func (s *statement) unsureDefault() (why string) {
	depth := 0
	for ; s.at < len(s.words); s.at++ {
		switch t := s.words[s.at]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case t.is(",") && depth == 0:
			return why
		case t.is("DEFAULT") && why == "":
			why = s.unsureExpression(s.at + 1)
		}
	}
	return why
}

// unsureExpression returns why the default that begins at a word may have another value at a sink. A default without brackets around it is one
// word, one call, or CASE … END or {fn …}.
func (s *statement) unsureExpression(from int) string {
	for i, depth := from, 0; i < len(s.words); i++ {
		t, next := s.words[i], token{}
		if i+1 < len(s.words) {
			next = s.words[i+1]
		}
		switch {
		case t.is("(", "{", "CASE"):
			depth++
		case t.is(")", "}", "END"):
			depth--
		case t.is("@", "/"), t.is("NEXT", "PREVIOUS", "CURRENT_USER", "CURRENT_ROLE", "SESSION_USER", "SYSDATE"), t.name && next.is("(") && !sameEverywhere[strings.ToUpper(t.text)]:
			return fmt.Sprintf("the default of a column that it adds has %s, and may give rows other values at the sink; add the column without it, set the values, and alter the default then", t.text)
		}
		if depth <= 0 && !next.is("(") {
			return "" // the end of the expression in brackets, of a call, or of a single word
		}
	}
	return ""
}

// introduced returns why text in a statement that was converted to UTF-8 may have another meaning then: a character set before a string says
// what its bytes are, whatever the statement is written in.
func (s *statement) introduced() string {
	for i := 1; i < len(s.words); i++ {
		set, text := s.words[i-1], s.words[i]
		if set.name && !set.quoted && strings.HasPrefix(set.text, "_") && text.quoted && !text.name && !isASCII(text.text) {
			return fmt.Sprintf("it has text with the character set %s before it and is written in another character set than UTF-8; SET NAMES utf8mb4 before such statements", set.text)
		}
	}
	return ""
}
