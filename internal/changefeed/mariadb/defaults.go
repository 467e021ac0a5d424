package mariadb

import (
	"fmt"
	"strings"
)

// A column that is added gives its default to all rows that there are, and one that is stored is computed for them. The log has the statement
// and not the values, so that an expression that depends on more than the row and the time of the statement would leave other values at the sink.

// sameEverywhere are the functions, and the types and words before a bracket, that depend on nothing else.
var sameEverywhere = wordSet(`
	NOW CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP CURDATE CURRENT_DATE CURTIME CURRENT_TIME UTC_TIMESTAMP UTC_DATE UTC_TIME UNIX_TIMESTAMP FROM_UNIXTIME
	DATE TIME TIMESTAMP YEAR MONTH DAY DAYOFMONTH DAYOFYEAR DAYOFWEEK WEEKDAY PERIOD_ADD PERIOD_DIFF HOUR MINUTE SECOND MICROSECOND QUARTER LAST_DAY MAKEDATE MAKETIME
	DATE_ADD DATE_SUB ADDDATE SUBDATE ADDTIME SUBTIME DATEDIFF TIMEDIFF TIMESTAMPADD TIMESTAMPDIFF TO_DAYS FROM_DAYS TO_SECONDS SEC_TO_TIME TIME_TO_SEC STR_TO_DATE DATE_FORMAT TIME_FORMAT EXTRACT
	IF IFNULL NULLIF COALESCE ISNULL NVL NVL2 GREATEST LEAST INTERVAL IN AND OR NOT XOR CASE WHEN THEN ELSE BETWEEN LIKE BINARY
	CONCAT CONCAT_WS LOWER UPPER LCASE UCASE LEFT RIGHT MID SUBSTR SUBSTRING SUBSTRING_INDEX TRIM LTRIM RTRIM LENGTH OCTET_LENGTH CHAR_LENGTH CHARACTER_LENGTH BIT_LENGTH
	REPLACE REPEAT SPACE LPAD RPAD REVERSE INSERT INSTR LOCATE POSITION ASCII ORD CHAR CHR HEX UNHEX ELT FIELD FIND_IN_SET FORMAT QUOTE TO_BASE64 FROM_BASE64 STRCMP
	ABS CEIL CEILING FLOOR ROUND TRUNCATE MOD DIV SIGN SQRT CONV OCT BIN BIT_COUNT
	MD5 SHA SHA1 SHA2 CRC32 INET_ATON INET_NTOA INET6_ATON INET6_NTOA
	JSON_OBJECT JSON_ARRAY JSON_QUOTE JSON_UNQUOTE JSON_EXTRACT JSON_VALUE JSON_QUERY JSON_SET JSON_INSERT JSON_REPLACE JSON_REMOVE JSON_MERGE JSON_VALID JSON_COMPACT
	JSON_LENGTH JSON_DEPTH JSON_TYPE JSON_KEYS JSON_EXISTS JSON_CONTAINS JSON_CONTAINS_PATH JSON_SEARCH JSON_ARRAY_APPEND JSON_ARRAY_INSERT JSON_MERGE_PATCH JSON_MERGE_PRESERVE
	POINT LINESTRING POLYGON ST_GEOMFROMTEXT ST_GEOMFROMWKB
	CAST CONVERT USING DECIMAL NUMERIC VARCHAR NCHAR SIGNED UNSIGNED INTEGER INT DATETIME DOUBLE FLOAT
`)

func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(text) {
		set[word] = true
	}
	return set
}

// unsureValues reads a clause that adds or changes columns, up to the comma after it. It returns why a default of a column that is added, or the
// expression of one that is stored, may give rows other values at a sink; empty if none does.
func (s *statement) unsureValues(adds bool) (why string) {
	depth := 0
	for ; s.at < len(s.words); s.at++ {
		switch t := s.words[s.at]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case t.is(",") && depth == 0:
			return why
		case why != "":
		case t.is("DEFAULT") && adds:
			if word := s.unsureExpression(s.at + 1); word != "" {
				why = fmt.Sprintf("the default of a column that it adds has %s, and may give rows other values at the sink; add the column without it, set the values, and alter the default then", word)
			}
		case t.is("AS") && s.computesStored(s.at+1):
			if word := s.unsureExpression(s.at + 1); word != "" {
				why = fmt.Sprintf("the expression of a stored column that it computes has %s, and may give rows other values at the sink; make the column VIRTUAL", word)
			}
		}
	}
	return why
}

// computesStored reports whether the words from one on are the expression of a column that is stored.
func (s *statement) computesStored(from int) bool {
	end := 0
	if from < len(s.words) && s.words[from].is("(") {
		end = s.closing(from, len(s.words))
	}
	return end > 0 && end+1 < len(s.words) && s.words[end+1].is("STORED", "PERSISTENT")
}

// unsureExpression returns the word because of which the expression that begins at a word may have another value at a sink. A default without
// brackets around it is one word, one call, or CASE … END or {fn …}.
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
		case t.is("@", "/"), t.is("REGEXP", "RLIKE", "NEXT", "PREVIOUS", "CURRENT_USER", "CURRENT_ROLE", "SESSION_USER", "SYSDATE"), t.name && next.is("(") && !sameEverywhere[strings.ToUpper(t.text)]:
			return t.text
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
