"""FileCheck, as far as the tests of TFRT use it: plain, NEXT, SAME, NOT, DAG, LABEL, COUNT and EMPTY directives, regular
expressions in `{{...}}`, variables in `[[NAME:regex]]`, and `[[@LINE+1]]`."""

import re


class Failure(Exception):
    """A directive that does not match."""


class Directive:
    def __init__(self, kind, count, text, line):
        self.kind, self.count, self.text, self.line = kind, count, text, line


def directives(source, prefixes):
    """The directives of a text, in order."""
    found = []
    pattern = re.compile(r"(?<![\w-])(?:%s)(?:-(NEXT|SAME|NOT|DAG|LABEL|EMPTY|COUNT-(\d+)))?:(.*)" % "|".join(prefixes))
    for number, line in enumerate(source.splitlines(), 1):
        if match := pattern.search(line):
            kind = "COUNT" if match[2] else match[1] or "CHECK"
            found.append(Directive(kind, int(match[2] or 1), match[3].strip(), number))
    return found


def expression(directive, variables):
    """The regular expression of a directive; groups are the variables that it defines."""
    out, defines, rest = "", [], directive.text
    token = re.compile(r"\{\{(.*?)\}\}(?!\})|\[\[(?:@LINE([+-]\d+)?|#?([A-Za-z_$]\w*)(?::(.*?))?)\]\](?!\])")
    while match := token.search(rest):
        out += literal(rest[: match.start()])
        if match[1] is not None:
            out += "(?:%s)" % posix(match[1])
        elif match[3] is None:
            out += str(directive.line + int(match[2] or 0))
        elif match[4] is not None:
            defines.append(match[3])
            out += "(?P<%s>%s)" % (match[3].lstrip("$"), posix(match[4]))
        elif match[3].lstrip("$") in defines:
            out += "(?P=%s)" % match[3]
        elif match[3] in variables:
            out += re.escape(variables[match[3]])
        else:
            raise Failure("line %d: [[%s]] is not defined" % (directive.line, match[3]))
        rest = rest[match.end():]
    return re.compile(out + literal(rest), re.MULTILINE), defines


def posix(pattern):
    """A pattern with the character classes that Python spells in another way."""
    return pattern.replace("[:xdigit:]", "0-9a-fA-F").replace("[:digit:]", "0-9").replace("[:alnum:]", "0-9a-zA-Z")


def literal(text):
    """Text in which white space matches any white space of a line."""
    return r"[ \t]+".join(re.escape(part) for part in re.split(r"[ \t]+", text))


class Checker:
    def __init__(self, text):
        self.text, self.at, self.end, self.variables = text, 0, len(text), {}
        # What must not occur before the next match.
        self.forbidden = []

    def search(self, directive, start, end):
        pattern, defines = expression(directive, self.variables)
        match = pattern.search(self.text, start, end)
        if match:
            self.variables.update({name: match[name.lstrip("$")] for name in defines})
        return match

    def require(self, directive, start, end):
        match = self.search(directive, start, end)
        if not match:
            near = self.text[start:end].splitlines()[:1]
            raise Failure("line %d: %s: %s is not found after %r" % (directive.line, directive.kind, directive.text, near))
        self.check_forbidden(self.at, match.start())
        return match

    def check_forbidden(self, start, end):
        for directive in self.forbidden:
            if self.search(directive, start, end):
                raise Failure("line %d: NOT: %s is there" % (directive.line, directive.text))
        self.forbidden = []

    def next_line(self):
        newline = self.text.find("\n", self.at)
        start = self.end if newline < 0 else newline + 1
        end = self.text.find("\n", start)
        return start, self.end if end < 0 else end

    def check(self, directive):
        if directive.kind == "NOT":
            return self.forbidden.append(directive)
        start, end = self.at, self.end
        if directive.kind == "NEXT":
            start, end = self.next_line()
        elif directive.kind == "SAME":
            newline = self.text.find("\n", self.at)
            end = self.end if newline < 0 else newline
        elif directive.kind == "EMPTY":
            start, end = self.next_line()
            if start != end:
                raise Failure("line %d: EMPTY: the line is not empty" % directive.line)
            self.at = end
            return
        for _ in range(directive.count):
            match = self.require(directive, start, end)
            self.at = start = match.end()

    def check_unordered(self, group):
        """Lines of a group of DAG directives match in any order, without overlap."""
        taken, last = [], self.at
        for directive in group:
            start = self.at
            while match := self.search(directive, start, self.end):
                if all(match.end() <= a or match.start() >= b for a, b in taken):
                    break
                start = match.end() + 1
            if not match:
                raise Failure("line %d: DAG: %s is not found" % (directive.line, directive.text))
            taken.append(match.span())
            last = max(last, match.end())
        self.check_forbidden(self.at, min(a for a, _ in taken))
        self.at = last


def check(source, text, prefixes=("CHECK",)):
    """Checks `text` against the directives of `source`. Raises `Failure`."""
    todo = directives(source, prefixes)
    if not todo:
        raise Failure("no directives")
    checker = Checker(text)
    while todo:
        group = []
        while todo and todo[0].kind == "DAG":
            group.append(todo.pop(0))
        if group:
            checker.check_unordered(group)
        else:
            checker.check(todo.pop(0))
    checker.check_forbidden(checker.at, checker.end)
