from helpers.study_files import inputs as inputs
